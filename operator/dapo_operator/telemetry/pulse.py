"""Whether the operator's loop turns and gets round to every job. Written by the loop, read by the probe's thread."""

import asyncio
import time
from collections.abc import Callable
from typing import Final

Key = tuple[str, str]

BEAT_SECONDS: Final = 1.0


class Pulse:
    """Times are seconds of `clock`. A value is only ever replaced, so a thread may read while the loop writes.

    Jobs are looked at in the order of their news. After a thousand came at once the last may wait for minutes, and all
    is well: what is wrong is a queue that does not move, and a job that is left out of it.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, stalled_after: float = 30.0, waiting_after: float = 300.0
    ) -> None:
        self._clock, self._stalled_after, self._waiting_after = clock, stalled_after, waiting_after
        self._beat = clock()
        self._news: dict[Key, float] = {}
        self._moved = clock()
        self._reached = clock()

    async def run(self) -> None:
        """Beat for ever, on the loop that is to be watched."""
        while True:
            self.beat()
            await asyncio.sleep(BEAT_SECONDS)

    def beat(self) -> None:
        """The loop turns."""
        self._beat = self._clock()

    def news(self, key: Key) -> None:
        """Something about this job has changed, and it has to be looked at."""
        self._news.setdefault(key, self._clock())

    def looked(self, key: Key) -> float | None:
        """Somebody looks at this job now. Answers the seconds since its first news, None when there were none."""
        since = self._news.pop(key, None)
        if since is None:
            return None
        self._moved, self._reached = self._clock(), max(self._reached, since)
        return self._moved - since

    @property
    def waiting(self) -> int:
        """Jobs with news that nobody has looked at yet."""
        return len(self._news)

    def ailments(self) -> list[str]:
        """Sentences about what is wrong; none when all is well."""
        now = self._clock()
        found = []
        if (silent := now - self._beat) > self._stalled_after:
            found.append(f"The loop has not turned for {silent:.0f} s.")
        first = min(self._news.copy().values(), default=now)
        if (still := now - max(self._moved, first)) > self._waiting_after:
            found.append(f"Jobs have news, and none has been looked at for {still:.0f} s.")
        elif self._reached - first > self._waiting_after:
            found.append(f"A job with news has been waiting for {now - first:.0f} s, and later ones have not.")
        return found
