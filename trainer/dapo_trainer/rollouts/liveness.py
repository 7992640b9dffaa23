"""Finds engines that are alive but do not generate, by their work and not by their process. Pure: no clock."""

from dataclasses import dataclass
from typing import Final

# Without progress for this long an engine is asked for one token; without progress or that token for the second, it is
# taken for wedged. An engine on a busy processor takes seconds for a token, and a minute is no more than that costs.
ASK_AFTER_SECONDS: Final = 20.0
WEDGED_AFTER_SECONDS: Final = 90.0


@dataclass
class Liveness:
    """What is known of one engine that serves. `seen_at`: when it was last known to generate (seconds)."""

    seen_at: float
    _progress: int | None = None

    def progressed(self, progress: int, now: float) -> None:
        """The engine reported how much it has done: a number that grows while it works."""
        if progress != self._progress:
            self._progress, self.seen_at = progress, now

    def generated(self, now: float) -> None:
        """The token that it was asked for has come, or it was paused: nothing is known against it."""
        self.seen_at = now

    def to_be_asked(self, now: float) -> bool:
        """Whether it is time for a request of one token."""
        return now >= self.seen_at + ASK_AFTER_SECONDS

    def wedged(self, now: float) -> bool:
        """Whether it has neither progressed nor answered for too long."""
        return now >= self.seen_at + WEDGED_AFTER_SECONDS
