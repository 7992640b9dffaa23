"""A loop whose clock jumps to the next thing that is due, so that a test of minutes takes milliseconds."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class VirtualLoop(asyncio.SelectorEventLoop):
    """Its `time` starts at 1,000 and goes on only when nothing else is left to do. Not for real input and output."""

    def __init__(self) -> None:
        self._virtual_now = 1000.0
        super().__init__()

    def time(self) -> float:
        """Virtual seconds."""
        return self._virtual_now

    def _run_once(self) -> None:
        if not self._ready and self._scheduled:  # type: ignore[attr-defined]
            self._virtual_now = max(self._virtual_now, self._scheduled[0]._when)  # type: ignore[attr-defined]
        super()._run_once()  # type: ignore[misc]


def run_virtual(main: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run` in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)


def now() -> float:
    """The running loop's time: a clock for what is under test."""
    return asyncio.get_running_loop().time()
