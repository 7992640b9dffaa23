"""How long an engine may take to receive weights, from how long the updates so far took. Pure."""

from dataclasses import dataclass
from typing import Final

FACTOR: Final = 10.0
LEAST_SECONDS: Final = 120.0
FIRST_SECONDS: Final = 1800.0
REPEATS: Final = 2


@dataclass
class SyncLimit:
    """The first updates have a limit that none passes who is alive; later ones a multiple of the longest."""

    _longest: float = 0.0
    _count: int = 0

    def took(self, seconds: float) -> None:
        """An update has taken this long."""
        self._longest, self._count = max(self._longest, seconds), self._count + 1

    @property
    def seconds(self) -> float:
        """For the next one."""
        return FIRST_SECONDS if self._count < REPEATS else max(LEAST_SECONDS, FACTOR * self._longest)
