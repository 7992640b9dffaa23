"""What a page was drawn from, to tell whether it would look different now: while it would not, nothing is sent."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Final

# Versions of a file differ in its modification time, which some file systems keep in whole seconds.
_MARGIN_SECONDS: Final = 2.0


@dataclass(frozen=True)
class Stillness:
    """The store has been at this `version` `since` then (by a monotonic clock), or for longer."""

    version: object
    since: float = field(compare=False)


@dataclass(frozen=True)
class _Read:
    again: Callable[[], object]
    value: object

    def changed(self) -> bool:
        return self.again() is not self.value


class PageReads:
    """The values that were read while a page was drawn.

    `stillness` says how long the store has not changed; it is the same object until the store does. Once nothing that
    was read is older than the last change, no read is repeated until the next."""

    def __init__(
        self, stillness: Callable[[], Stillness | None] = lambda: None, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._stillness, self._now = stillness, now
        self._reads: list[_Read] = []
        self._times: list[_Read] = []
        self._longest = 0.0
        self._settled: Stillness | None = None

    @contextmanager
    def noted(self) -> Iterator[None]:
        """What is read in this block, and in this thread, belongs to the page."""
        token = _NOTED.set(self)
        try:
            yield
        finally:
            _NOTED.reset(token)

    def changed(self) -> bool:
        """Whether anything would be another object if it was read now. Raises StoreError."""
        if any(read.changed() for read in self._times):
            return True
        still = self._stillness()
        if still is not None and still is self._settled:
            return False
        if any(read.changed() for read in self._reads):
            return True
        is_settled = still is not None and self._now() - still.since > self._longest + _MARGIN_SECONDS
        self._settled = still if is_settled else None
        return False

    def add(self, again: Callable[[], object], value: object, max_age: float) -> None:
        """`value` is what `again` reads from the store, or read at most `max_age` seconds ago, until it changes."""
        self._reads.append(_Read(again, value))
        self._longest = max(self._longest, max_age)

    def add_time(self, again: Callable[[], object], value: object) -> None:
        """`value` is what `again` returns until some time."""
        self._times.append(_Read(again, value))


_NOTED: ContextVar[PageReads | None] = ContextVar("dapo_page_reads", default=None)


def note(again: Callable[[], object], value: object, max_age: float) -> None:
    """Tell the page that is being drawn, if there is one, what it shows."""
    page = _NOTED.get()
    if page is not None:
        page.add(again, value, max_age)


def note_time(seconds: float = 60.0, now: Callable[[], float] = time.time) -> None:
    """Tell the page that it shows how long something has taken: it is out of date after so many seconds."""
    page, shown, due = _NOTED.get(), object(), now() + seconds
    if page is not None:
        page.add_time(lambda: shown if now() < due else None, shown)
