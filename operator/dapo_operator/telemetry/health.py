"""Whether the event loop runs and every job is reconciled. Written by the loop, read by the probe's thread."""

import asyncio
import time
from collections.abc import Callable
from typing import Final

Key = tuple[str, str]

BEAT_SECONDS: Final = 1.0


class Health:
    """Times are seconds of `clock`. Values are only ever replaced, so a thread may read them while the loop writes.

    Jobs are reconciled in the order in which they were woken. After a thousand at once the last one may wait for
    minutes, which is fine: the faults are a queue that does not move, and a job that is skipped.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, stalled_after: float = 30.0, waiting_after: float = 300.0
    ) -> None:
        self._clock, self._stalled_after, self._waiting_after = clock, stalled_after, waiting_after
        self._beat = clock()
        self._woken_at: dict[Key, float] = {}
        self._moved = clock()
        self._reached = clock()

    async def run(self) -> None:
        """Beat until cancelled, on the loop that is watched."""
        while True:
            self.beat()
            await asyncio.sleep(BEAT_SECONDS)

    def beat(self) -> None:
        """The loop runs."""
        self._beat = self._clock()

    def woken(self, key: Key) -> None:
        """The job has changed and has to be reconciled."""
        self._woken_at.setdefault(key, self._clock())

    def reconciling(self, key: Key) -> float | None:
        """The job is reconciled now. Returns the seconds since it was first woken; None when it was not."""
        since = self._woken_at.pop(key, None)
        if since is None:
            return None
        self._moved, self._reached = self._clock(), max(self._reached, since)
        return self._moved - since

    @property
    def waiting(self) -> int:
        """Jobs that were woken and not reconciled yet."""
        return len(self._woken_at)

    def problems(self) -> list[str]:
        """Sentences about what is wrong; empty when nothing is."""
        now = self._clock()
        problems = []
        if (silent := now - self._beat) > self._stalled_after:
            problems.append(f"The event loop has not run for {silent:.0f} s.")
        first = min(self._woken_at.copy().values(), default=now)
        if (still := now - max(self._moved, first)) > self._waiting_after:
            problems.append(f"Jobs are waiting, and none has been reconciled for {still:.0f} s.")
        elif self._reached - first > self._waiting_after:
            problems.append(f"A job has been waiting for {now - first:.0f} s, while later ones were reconciled.")
        return problems
