"""Asking processes to stop, and being asked: signals, and two promises of the Linux kernel about children."""

import ctypes
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
# Loaded once, before any fork: a child between fork and exec must not import or allocate much.
_LIBC = ctypes.CDLL(None, use_errno=True)


@dataclass
class StopRequest:
    """`asked`: checkpoint, then stop. `insisted`: stop now."""

    asked: bool = False
    insisted: bool = False
    _seen: set[int] = field(default_factory=set)

    def receive(self, number: int) -> None:
        # A closing terminal may send SIGHUP and SIGTERM together, which is one request; Ctrl-C again is another.
        self.insisted = self.insisted or (self.asked and (number == signal.SIGINT or number in self._seen))
        self.asked = True
        self._seen.add(number)


@contextmanager
def stop_requests() -> Iterator[StopRequest]:
    """Within the block, collect SIGINT, SIGTERM and SIGHUP instead of ending by them."""
    request = StopRequest()

    def handle(number: int, _frame: FrameType | None) -> None:
        request.receive(number)

    before = {number: signal.signal(number, handle) for number in STOPPING}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def become_subreaper() -> None:
    """Descendants whose parent ends become children of this process, not of init. Raises OSError."""
    if _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed")


def signal_at_death_of(parent: int, number: signal.Signals) -> None:
    """For a child between fork and exec: receive `number` when the thread that forked it ends."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), number)  # the parent ended before the request
