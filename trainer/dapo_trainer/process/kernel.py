"""Two promises of the Linux kernel about children, which Python has no function for."""

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
# Loaded once, before any fork: a child between fork and exec must not import or allocate much.
_LIBC = ctypes.CDLL(None, use_errno=True)


def become_subreaper() -> None:
    """Descendants whose parent ends become children of this process, not of init. Raises OSError."""
    if _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed")


def signal_at_death_of(parent: int, number: signal.Signals) -> None:
    """For a child between fork and exec: get `number` when the thread that forked it ends."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), number)  # the parent ended before the request
