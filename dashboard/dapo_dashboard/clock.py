"""From steps to wall time and tokens, and back. Pure."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Final, Literal

Axis = Literal["step", "time", "tokens"]
AXES: Final[tuple[Axis, ...]] = ("step", "time", "tokens")
_SERIALS = count()


@dataclass(frozen=True)
class Clock:
    """When each of `steps` was finished (Unix seconds) and how many tokens had been trained on by then. Rising.
    `serial` tells clocks apart."""

    steps: Sequence[float] = field(default_factory=list)
    times: Sequence[float] = field(default_factory=list)
    tokens: Sequence[float] = field(default_factory=list)
    serial: int = field(default_factory=_SERIALS.__next__, compare=False)

    def place(self, step: float, axis: Axis) -> float | None:
        """Where a step stands on an axis: itself, milliseconds since 1970, or tokens; None when that is not known."""
        if axis == "step":
            return step
        value = _interpolated(self.steps, self.times if axis == "time" else self.tokens, step)
        return None if value is None else value * 1000 if axis == "time" else value

    def step_at(self, place: float, axis: Axis) -> float | None:
        """The step at a place on an axis."""
        if axis == "step":
            return place
        if axis == "time":
            return _interpolated(self.times, self.steps, place / 1000)
        return _interpolated(self.tokens, self.steps, place)


def _interpolated(xs: Sequence[float], ys: Sequence[float], x: float) -> float | None:
    if not xs or len(ys) != len(xs):
        return None
    at = bisect_left(xs, x)
    if at == 0:
        return ys[0]
    if at == len(xs):
        return ys[-1]
    width = xs[at] - xs[at - 1]
    share = (x - xs[at - 1]) / width if width > 0 else 1.0
    return ys[at - 1] + share * (ys[at] - ys[at - 1])
