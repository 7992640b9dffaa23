"""How the charts of a page are looked at (axis, smoothing, window; all in the page's URL), and how steps map to wall
time and tokens. Pure."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Final, Literal

Axis = Literal["step", "time", "tokens"]
AXES: Final[tuple[Axis, ...]] = ("step", "time", "tokens")
FROM: Final = "from"
TO: Final = "to"
MAX_STEP: Final = 2**53
_SERIALS = count()


@dataclass(frozen=True)
class ChartView:
    """`smoothing` in [0, 1); `window` is the range of steps shown, None for all; `overwritten`: points that a newer
    attempt has overwritten are shown."""

    axis: Axis = "step"
    smoothing: float = 0.0
    log: bool = False
    window: tuple[int, int] | None = None
    overwritten: bool = True


def window_of(query: Mapping[str, str]) -> tuple[int, int] | None:
    """The range of steps that a URL's query asks for; None if it asks for none or is invalid."""
    try:
        start, end = int(query[FROM]), int(query[TO])
    except (KeyError, ValueError):
        return None
    return (start, end) if 0 <= start < end < MAX_STEP else None


def axis_of(label: str | None) -> Axis:
    """The axis of that name, else steps."""
    return next((axis for axis in AXES if axis == label), "step")


@dataclass(frozen=True)
class StepClock:
    """When each of `steps` finished (Unix seconds) and how many tokens had been trained on by then, in ascending order.
    `serial` identifies this version of the clock."""

    steps: Sequence[float] = field(default_factory=list)
    times: Sequence[float] = field(default_factory=list)
    tokens: Sequence[float] = field(default_factory=list)
    serial: int = field(default_factory=_SERIALS.__next__, compare=False)

    def place(self, step: float, axis: Axis) -> float | None:
        """The position of a step on an axis: the step itself, milliseconds since 1970, or tokens; None if unknown."""
        if axis == "step":
            return step
        value = _interpolated(self.steps, self.times if axis == "time" else self.tokens, step)
        return None if value is None else value * 1000 if axis == "time" else value

    def step_at(self, place: float, axis: Axis) -> float | None:
        """The step at a position on an axis; None if unknown."""
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
