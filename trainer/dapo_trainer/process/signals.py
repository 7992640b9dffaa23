"""Asking a supervisor to stop: the first signal asks politely, a second one insists."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass
class StopRequest:
    """`asked`: checkpoint, then stop. `insisted`: stop now."""

    asked: bool = False
    insisted: bool = False
    _seen: set[int] = field(default_factory=set)

    def receive(self, number: int) -> None:
        # A closing terminal may send SIGHUP and SIGTERM together, which is one wish; Ctrl-C again is another.
        self.insisted = self.insisted or (self.asked and (number == signal.SIGINT or number in self._seen))
        self.asked = True
        self._seen.add(number)


@contextmanager
def stop_requests() -> Iterator[StopRequest]:
    """Collect SIGINT, SIGTERM and SIGHUP for the time of the block instead of dying by them."""
    request = StopRequest()

    def handle(number: int, _frame: FrameType | None) -> None:
        request.receive(number)

    before = {number: signal.signal(number, handle) for number in STOPPING}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
