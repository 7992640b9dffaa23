"""How long tests wait. Limits are written in seconds of a fast, idle machine and scale with the one at hand.

`DAPO_TEST_PATIENCE` sets the factor. Without it, a short loop is timed against the fast machine and the result doubled:
two tests run side by side.
"""

import os
import time
from functools import cache
from typing import Final

_LOOPS: Final = 300_000
_FAST_SECONDS: Final = 0.025  # for that many loops, on the machine where the limits were written
_NEIGHBOURS: Final = 2.0


@cache
def factor() -> float:
    """How many times longer than written a test may wait; at least 1 when measured."""
    if given := os.environ.get("DAPO_TEST_PATIENCE"):
        return float(given)
    return _NEIGHBOURS * max(1.0, min(_loop_seconds() for _ in range(3)) / _FAST_SECONDS)


def patient(seconds: float) -> float:
    """A limit for something that ends by itself long before: written for a fast machine, scaled to this one."""
    return seconds * factor()


def _loop_seconds() -> float:
    begun, count = time.perf_counter(), 0
    while count < _LOOPS:
        count += 1
    return time.perf_counter() - begun
