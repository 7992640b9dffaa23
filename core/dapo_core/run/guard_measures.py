"""What guards compare with their thresholds, value by value. It keeps a few numbers of a curve of any length. Pure."""

from collections import deque
from dataclasses import dataclass, field
from statistics import median
from typing import Final, Protocol

BASELINE_STEPS: Final = 20
MEAN_STEPS: Final = 10


class Measure(Protocol):
    """Takes the finite values of a curve in the order of their steps."""

    def add(self, value: float) -> float | None:
        """What to compare with the threshold; None: this step decides nothing."""
        ...


class Plain:
    """The value itself."""

    def add(self, value: float) -> float | None:
        """The value."""
        return value


@dataclass
class Multiple:
    """Multiples of the median of the run's first steps; none until these are complete, nor of a median of 0 or less."""

    first: list[float] = field(default_factory=list)
    baseline: float = 0.0

    def add(self, value: float) -> float | None:
        """How many times the baseline the value is."""
        if len(self.first) < BASELINE_STEPS:
            self.first.append(value)
            self.baseline = median(self.first) if len(self.first) == BASELINE_STEPS else 0.0
            return None
        return value / self.baseline if self.baseline > 0 else None


@dataclass
class BelowBest:
    """How far each step is below the best mean of some steps before it."""

    window: deque[float] = field(default_factory=lambda: deque(maxlen=MEAN_STEPS))
    best: float | None = None

    def add(self, value: float) -> float | None:
        """The distance; None until there is a mean."""
        below = None if self.best is None else self.best - value
        self.window.append(value)
        if len(self.window) == MEAN_STEPS:
            mean = sum(self.window) / MEAN_STEPS
            self.best = mean if self.best is None else max(self.best, mean)
        return below


@dataclass
class Streak:
    """Since when a rule holds: it begins, and ends, with as many steps in a row beyond, or within, its threshold.
    `step` and `value` are the last that were compared."""

    since: int | None = None
    step: int = 0
    value: float = 0.0
    began: int = 0
    length: int = 0
    beyond: bool | None = None

    def add(self, step: int, value: float, beyond: bool, for_steps: int) -> None:
        """One more step."""
        self.step, self.value = step, value
        if beyond != self.beyond:
            self.beyond, self.began, self.length = beyond, step, 0
        self.length += 1
        if self.length >= for_steps:
            self.since = (self.since if self.since is not None else self.began) if beyond else None
