"""How long to wait before trying again. Pure but for the dice."""

import random
from dataclasses import dataclass


@dataclass(frozen=True)
class Backoff:
    """Waits in seconds: `first`, doubled for each failure after it, at most `longest`."""

    first: float
    longest: float

    def delay(self, failures: int) -> float:
        """Seconds after the given number of failures in a row (1, 2, ...), of which a half is by chance.

        Without chance, all trainers of a cluster would come back to a restarted database at the same moment.
        """
        whole: float = min(self.longest, self.first * 2 ** min(failures - 1, 32))
        return whole * random.uniform(0.5, 1.0)
