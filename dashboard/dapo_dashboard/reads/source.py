"""Reads shared by all viewers, which give the last answer and its age while the store is down."""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from dapo_core.db.pages import PageReader, open_page_reader
from dapo_core.errors import StoreError

T = TypeVar("T")
MAX_ENTRIES: Final = 2_000
# How long nothing is asked of a store that has just failed: a page of many reads waits for one time-out, not for all.
PAUSE_SECONDS: Final = 2.0


@dataclass(frozen=True)
class Reading(Generic[T]):
    """A value and when it was read, in Unix seconds. `problem` says why it is not fresh."""

    value: T
    at: float
    problem: str | None = None


@dataclass(frozen=True)
class Trouble:
    """The store has not answered since `since`, Unix seconds; `oldest` is when the oldest of what is shown was read."""

    since: float
    message: str


class NothingYetError(StoreError):
    """The store does not answer, and it never has."""


class Source:
    """One per server. Each key is read by one viewer at a time; the others wait for its answer and share it."""

    def __init__(
        self,
        url: str,
        *,
        opener: Callable[[str], PageReader] = open_page_reader,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._url = url
        self._opener = opener
        self._now = now
        self._reader: PageReader | None = None
        self._lock = threading.Lock()
        self._entries: OrderedDict[Hashable, _Entry] = OrderedDict()
        self._trouble: Trouble | None = None
        self._ask_again_at = 0.0

    @property
    def trouble(self) -> Trouble | None:
        """What is wrong with the store, while it is."""
        return self._trouble

    def read(self, key: Hashable, load: Callable[[PageReader, T | None], T], max_age: float = 0.8) -> Reading[T]:
        """What `load` makes of the store and of its last answer, at most `max_age` seconds old; while the store is
        down, the last answer.

        Raises NothingYetError when there never was one."""
        entry = self._entry(key)
        with entry.lock:
            if entry.reading is None or self._now() - entry.reading.at > max_age or entry.reading.problem:
                entry.reading = self._ask(entry.reading, load)
            return entry.reading

    def forget(self, key: Hashable) -> None:
        """Ask again at the next read: something was written."""
        with self._lock:
            self._entries.pop(key, None)

    def answers(self) -> bool:
        """Whether the store answers now; asks it unless it has just failed."""
        try:
            return self.read(("alive",), lambda reader, _: reader.runs(limit=1), max_age=0.2).problem is None
        except NothingYetError:
            return False

    def _entry(self, key: Hashable) -> "_Entry":
        with self._lock:
            entry = self._entries.setdefault(key, _Entry())
            self._entries.move_to_end(key)
            while len(self._entries) > MAX_ENTRIES:
                self._entries.popitem(last=False)
            return entry

    def _ask(self, last: Reading[T] | None, load: Callable[[PageReader, T | None], T]) -> Reading[T]:
        problem = self._trouble.message if self._trouble and self._now() < self._ask_again_at else None
        if problem is None:
            try:
                value = load(self._open(), None if last is None else last.value)
            except StoreError as error:
                problem = str(error)
                self._failed(problem)
            else:
                self._trouble = None
                return Reading(value, self._now())
        if last is None:
            raise NothingYetError(problem)
        return Reading(last.value, last.at, problem)

    def _open(self) -> PageReader:
        with self._lock:
            if self._reader is None:
                self._reader = self._opener(self._url)
            return self._reader

    def _failed(self, problem: str) -> None:
        now = self._now()
        self._trouble = Trouble(self._trouble.since if self._trouble else now, problem)
        self._ask_again_at = now + PAUSE_SECONDS


class _Entry:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.reading: Reading[Any] | None = None
