"""One curve as ECharts series: its line, the faint raw line, and the band from minimum to maximum. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any, Final

from dapo_dashboard.charts.buckets import Curve, smoothed
from dapo_dashboard.charts.view import ChartView, StepClock

Option = dict[str, Any]
Point = list[float | None]
DOTS_UP_TO: Final = 40
# The plot area within a chart, in pixels; link.js needs it too, to map the pointer between charts.
HEIGHT: Final = 250
LEFT: Final = 50
RIGHT: Final = 14
RIGHT_AXIS: Final = 50
TOP: Final = 34
BOTTOM: Final = 26


@dataclass(frozen=True)
class PlotLine:
    """One curve. `right`: on the right axis; `stack`: filled, on top of the lines before it; `bars`: drawn as bars."""

    name: str
    curve: Curve = ()
    right: bool = False
    color: str | None = None
    dash: str = "solid"
    stack: bool = False
    bars: bool = False


@dataclass(frozen=True)
class Placing:
    """Maps steps to positions on the x axis, in its unit."""

    view: ChartView
    clock: StepClock
    scale: float

    def __call__(self, step: float) -> float | None:
        place = self.clock.place(step, self.view.axis)
        return None if place is None else place / self.scale


def series_of(line: PlotLine, index: int, view: ChartView, place: Placing) -> list[Option]:
    """The series of the curve with this index in its chart; all have its name, so that they share color and legend."""
    gap = _usual_distance(line.curve) * 2.5
    means = _loggable([cell.mean for cell in line.curve], view.log)
    base = _style(line, index)
    if line.stack:
        return [
            base
            | {
                "data": _points(line.curve, means, place, gap),
                "areaStyle": {"opacity": 0.75},
                "lineStyle": {"width": 0.5},
                "stack": f"all{int(line.right)}",
                "stackStrategy": "all",
            }
        ]
    if line.bars:
        return [base | {"type": "bar", "barMaxWidth": 10, "data": _points(line.curve, means, place, gap)}]
    parts = _band(line, index, view, place, gap)
    # A metric recorded every tenth step has too few values to average.
    if view.smoothing <= 0 or _usual_distance(line.curve) > 1:
        return [base | {"data": _points(line.curve, means, place, gap)}, *parts]
    raw = {"lineStyle": {"width": 1, "opacity": 0.28, "type": line.dash}, "tooltip": {"show": False}, "silent": True}
    mean = _points(line.curve, smoothed(means, view.smoothing), place, gap)
    faint = base | raw | {"data": _points(line.curve, means, place, gap), "showSymbol": False}
    # The legend takes its symbol from the first series of a name.
    return [base | {"data": mean, "showSymbol": False}, faint, *parts]


def _style(line: PlotLine, index: int) -> Option:
    style: Option = {
        "type": "line",
        "name": line.name,
        "yAxisIndex": int(line.right),
        "showSymbol": len(line.curve) <= DOTS_UP_TO,
        "symbolSize": 4,
        "symbol": ("circle", "rect", "triangle", "diamond")[index % 4],
        "lineStyle": {"width": 2, "type": line.dash},
        "connectNulls": False,
        "emphasis": {"disabled": True},
        "z": 3,
    }
    return style | ({"color": line.color} if line.color else {})


def _band(line: PlotLine, index: int, view: ChartView, place: Placing, gap: float) -> list[Option]:
    """From minimum to maximum, where a bucket holds several steps or a value has an interval: a filled outline.

    One series, not two stacked ones: each costs the browser as much as a curve."""
    if not any(is_wide(cell.min, cell.max) for cell in line.curve):
        return []
    lows = _points(line.curve, _loggable([cell.min for cell in line.curve], view.log), place, gap)
    highs = _points(line.curve, _loggable([cell.max for cell in line.curve], view.log), place, gap)
    around = {
        "data": _around(lows, highs),
        "lineStyle": {"width": 0, "opacity": 0},
        "areaStyle": {"opacity": 0.2},
        "showSymbol": False,
        "silent": True,
        "tooltip": {"show": False},
        "z": 2,
    }
    return [_style(line, index) | around]


def _around(lows: list[Point], highs: list[Point]) -> list[Point]:
    """Forward along the maxima and back along the minima, for each stretch without a gap."""
    outline: list[Point] = []
    whole = [low[1] is not None and high[1] is not None for low, high in zip(lows, highs, strict=True)]
    for is_whole, stretch in groupby(range(len(whole)), key=whole.__getitem__):
        cells = list(stretch)
        if is_whole:
            outline += [*(highs[cell] for cell in cells), *(lows[cell] for cell in reversed(cells))]
        else:
            outline.append([highs[cells[0]][0], None])
    return outline


def _points(curve: Curve, values: Sequence[float | None], place: Placing, gap: float) -> list[Point]:
    """[x, y] of each cell; missing steps and values that are not finite break the line."""
    points: list[Point] = []
    before: int | None = None
    for cell, value in zip(curve, values, strict=True):
        if before is not None and cell.step_from - before > gap:
            points.append([place(before + 1), None])
        points.append([place(cell.step_to), _rounded(value)])
        before = cell.step_to
    return points


def _usual_distance(curve: Curve) -> float:
    """The median number of steps between values: a metric recorded every tenth step has no gaps."""
    distances = sorted(after.step_from - before.step_to for before, after in pairwise(curve))
    return max(1.0, float(distances[len(distances) // 2])) if distances else 1.0


def is_wide(low: float | None, high: float | None) -> bool:
    """Whether the interval is known and not empty."""
    return low is not None and high is not None and high > low


def _loggable(values: Sequence[float | None], log: bool) -> list[float | None]:
    return [None if value is None or (log and value <= 0) else value for value in values]


def _rounded(value: float | None) -> float | None:
    """To seven digits: more than a screen shows, and half the bytes."""
    return None if value is None else float(f"{value:.7g}")
