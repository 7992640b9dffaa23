"""What a page was drawn from, to tell whether it would look different now: while it would not, nothing is sent."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(frozen=True)
class _Read:
    again: Callable[[], object]
    value: object


class PageReads:
    """The values that were read while a page was drawn."""

    def __init__(self) -> None:
        self._reads: list[_Read] = []

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
        return any(read.again() is not read.value for read in self._reads)

    def add(self, again: Callable[[], object], value: object) -> None:
        """`value` is what `again` returns until it changes."""
        self._reads.append(_Read(again, value))


_NOTED: ContextVar[PageReads | None] = ContextVar("dapo_page_reads", default=None)


def note(again: Callable[[], object], value: object) -> None:
    """Tell the page that is being drawn, if there is one, what it shows."""
    page = _NOTED.get()
    if page is not None:
        page.add(again, value)


def note_time(seconds: float = 60.0, now: Callable[[], float] = time.time) -> None:
    """Tell the page that it shows how long something has taken: it is out of date after so many seconds."""
    shown, due = object(), now() + seconds
    note(lambda: shown if now() < due else None, shown)
