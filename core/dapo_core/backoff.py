"""How long to wait before the next try. Pure: chance is drawn by the caller."""

from dataclasses import dataclass
from typing import Final

# Far beyond any limit, and far below what a float can hold.
_MAX_DOUBLINGS: Final = 32


@dataclass(frozen=True)
class Backoff:
    """Waits in seconds: `first`, doubled for each failure after it, at most `longest`."""

    first: float
    longest: float

    def delay(self, failures: int, chance: float = 1.0) -> float:
        """Seconds to wait after this many failures in a row; 0 after none.

        `chance` (0 to 1) chooses between half of the wait and all of it. Whoever shares a server passes
        `random.random()`: otherwise all clients of one that restarted come back at the same moment.
        """
        if failures <= 0:
            return 0.0
        whole = min(self.longest, self.first * 2.0 ** min(failures - 1, _MAX_DOUBLINGS))
        return whole * (1 + chance) / 2
