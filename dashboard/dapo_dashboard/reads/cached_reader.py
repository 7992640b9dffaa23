"""Values shared by all viewers of a server: reads of the database, which return the last result and its age while the
database is down, and what is made out of them.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence, Set
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Final, Generic, TypeVar

from dapo_core.db import MetadataReader, RejectedError, open_reader
from dapo_core.errors import StoreError
from dapo_dashboard.reads.page_reads import Stillness, note

T = TypeVar("T")
MAX_ENTRIES: Final = 2_000
# A zoom into a run's page takes 2 MB and a comparison of twenty runs 11: entries alone do not limit memory.
MAX_BYTES: Final = 128 * 2**20
# How long a look at the store's version counts for all viewers.
LOOK_SECONDS: Final = 0.4
# After a failed read, nothing is read for so long: a page of many reads waits for one timeout, not for each of them.
PAUSE_SECONDS: Final = 2.0


class KeyedSlots(Generic[T]):
    """A slot with a lock for each key; only the slots that were used last are kept, so memory does not grow."""

    def __init__(self, max_keys: int, max_bytes: int = MAX_BYTES) -> None:
        self._max_keys, self._max_bytes = max_keys, max_bytes
        self._lock = threading.Lock()
        self._slots: OrderedDict[Hashable, Slot[T]] = OrderedDict()
        self._bytes = 0

    def slot(self, key: Hashable) -> "Slot[T]":
        """The key's slot, new and empty if there is none."""
        with self._lock:
            slot = self._slots.setdefault(key, Slot())
            self._slots.move_to_end(key)
            self._shrink()
            return slot

    def filled(self, key: Hashable, value: object) -> None:
        """Account for the `value` that the key's slot has now; what was used longest ago makes room for it."""
        size = size_of(value)
        with self._lock:
            if (slot := self._slots.get(key)) is not None:
                self._bytes += size - slot.size
                slot.size = size
                self._shrink()

    def drop(self, key: Hashable) -> None:
        """Remove the key's slot, if there is one."""
        with self._lock:
            if (slot := self._slots.pop(key, None)) is not None:
                self._bytes -= slot.size

    def _shrink(self) -> None:
        while len(self._slots) > self._max_keys or (self._bytes > self._max_bytes and len(self._slots) > 1):
            _, slot = self._slots.popitem(last=False)
            self._bytes -= slot.size


class Slot(Generic[T]):
    """One value, to be read and written under `lock`. `size` is what `KeyedSlots` accounts for it, in bytes."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.value: T | None = None
        self.size = 0


class NewestVersions(Generic[T]):
    """What was made last for each key: of a key, only the newest version is kept."""

    def __init__(self, max_keys: int, max_bytes: int = MAX_BYTES) -> None:
        self._made: KeyedSlots[tuple[Hashable, T]] = KeyedSlots(max_keys, max_bytes)

    def get(self, key: Hashable, version: Hashable, make: Callable[[], T]) -> T:
        """The key's value of that version; made by the first caller, while the others wait."""
        slot = self._made.slot(key)
        with slot.lock:
            if slot.value is None or slot.value[0] != version:
                slot.value = (version, make())
                self._made.filled(key, slot.value)
            return slot.value[1]


@dataclass(frozen=True)
class Reading(Generic[T]):
    """A value and when it was read, in Unix seconds. `problem` says why it is not fresh."""

    value: T
    at: float
    problem: str | None = None


@dataclass(frozen=True)
class Outage:
    """The database has failed every read since `since` (Unix seconds); `message` is the last error."""

    since: float
    message: str


class NothingReadError(StoreError):
    """The database cannot be read, and this value was never read before."""


class CachedReader:
    """One for each server. Each key is read by one viewer at a time; the others wait for the result and share it."""

    def __init__(
        self,
        url: str,
        *,
        opener: Callable[[str], MetadataReader] = open_reader,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._url = url
        self._opener = opener
        self._now = now
        self._reader: MetadataReader | None = None
        self._open_lock = threading.Lock()
        self._readings: KeyedSlots[Reading[Any]] = KeyedSlots(MAX_ENTRIES)
        self._outage: Outage | None = None
        self._retry_at = 0.0

    @property
    def outage(self) -> Outage | None:
        """None while the database can be read."""
        return self._outage

    def read(self, key: Hashable, load: Callable[[MetadataReader, T | None], T], max_age: float = 0.8) -> Reading[T]:
        """The key's value, at most `max_age` seconds old; while the database is down, the last one.

        `load` makes it out of the database and the last value. While a value stays equal, it is the same object. Raises
        NothingReadError if there is no last value."""
        reading = self._read(key, load, max_age)
        note(lambda: self._read(key, load, max_age).value, reading.value, max_age)
        return reading

    def _read(self, key: Hashable, load: Callable[[MetadataReader, T | None], T], max_age: float) -> Reading[T]:
        slot = self._readings.slot(key)
        with slot.lock:
            if slot.value is None or self._now() - slot.value.at > max_age or slot.value.problem:
                before = slot.value
                loaded = self._load(before, load)
                is_same = before is not None and loaded.value == before.value
                slot.value = replace(loaded, value=before.value) if before is not None and is_same else loaded
                if before is None or slot.value.value is not before.value:
                    self._readings.filled(key, slot.value.value)
            return slot.value

    def forget(self, key: Hashable) -> None:
        """Read the key again next time: its value was changed."""
        self._readings.drop(key)

    def stillness(self) -> Stillness | None:
        """How long the store has not changed; None while that is not known. One look is shared by all viewers."""

        def look(db: MetadataReader, _: Stillness | None) -> Stillness:
            return Stillness(db.version(), time.monotonic())

        try:
            reading = self._read(("version",), look, LOOK_SECONDS)
        except NothingReadError:
            return None
        return None if reading.problem else reading.value

    def is_up(self) -> bool:
        """Whether the database can be read now; tries it, unless a read has just failed."""
        try:
            return self.read(("alive",), lambda db, _: db.runs(limit=1), max_age=0.2).problem is None
        except NothingReadError:
            return False

    def _load(self, last: Reading[T] | None, load: Callable[[MetadataReader, T | None], T]) -> Reading[T]:
        problem = self._outage.message if self._outage and self._now() < self._retry_at else None
        if problem is None:
            try:
                value = load(self._open(), None if last is None else last.value)
            except StoreError as error:
                problem = str(error)
                # What was rejected is this read's own fault, such as a step in a URL that no database takes.
                if not isinstance(error, RejectedError):
                    self._failed(problem)
            else:
                self._outage = None
                return Reading(value, self._now())
        if last is None:
            raise NothingReadError(problem)
        return Reading(last.value, last.at, problem)

    def _open(self) -> MetadataReader:
        with self._open_lock:
            if self._reader is None:
                self._reader = self._opener(self._url)
            return self._reader

    def _failed(self, problem: str) -> None:
        now = self._now()
        self._outage = Outage(self._outage.since if self._outage else now, problem)
        self._retry_at = now + PAUSE_SECONDS


OBJECT: Final = 56  # bytes of a small object, and of its place in what holds it
SAMPLED: Final = 16


def size_of(value: object) -> int:
    """Bytes of a value made of dataclasses, containers, texts and numbers. Of a long sequence some members stand for
    all: rows of one query are alike."""
    if isinstance(value, (str, bytes)):
        return OBJECT + len(value)
    if isinstance(value, Mapping):
        return OBJECT + sum(size_of(key) + size_of(each) for key, each in value.items())
    if isinstance(value, (Sequence, Set)):
        return OBJECT + _of_members(list(value))
    if is_dataclass(value):
        return OBJECT + sum(size_of(getattr(value, field.name)) for field in fields(value))
    return OBJECT


def _of_members(members: list[object]) -> int:
    some = members[:: max(1, len(members) // SAMPLED)]
    return sum(map(size_of, some)) * len(members) // len(some) if some else 0
