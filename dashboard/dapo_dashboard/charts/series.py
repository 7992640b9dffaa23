"""One curve as ECharts series: its line, the faint raw one, and the band from least to most. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any, Final

from dapo_dashboard.charts.curves import Curve, smoothed
from dapo_dashboard.charts.view import View
from dapo_dashboard.clock import Clock

Option = dict[str, Any]
Point = list[float | None]
DOTS_UP_TO: Final = 40


@dataclass(frozen=True)
class Line:
    """One curve. `right`: its axis is the right one; `stack` fills it upon the ones before; `bars` draws bars."""

    name: str
    curve: Curve
    right: bool = False
    colour: str | None = None
    dash: str = "solid"
    stack: bool = False
    bars: bool = False


@dataclass(frozen=True)
class Placing:
    """Steps to places on the x axis, in its unit."""

    view: View
    clock: Clock
    scale: float

    def __call__(self, step: float) -> float | None:
        place = self.clock.place(step, self.view.axis)
        return None if place is None else place / self.scale


def series_of(line: Line, index: int, view: View, place: Placing) -> list[Option]:
    """The curve, number `index` of its chart; all its series bear its name, so that they share colour and legend."""
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
    # A metric of every tenth step has too few values to average.
    if view.smoothing <= 0 or _usual_distance(line.curve) > 1:
        return [base | {"data": _points(line.curve, means, place, gap)}, *parts]
    raw = {"lineStyle": {"width": 1, "opacity": 0.28, "type": line.dash}, "tooltip": {"show": False}, "silent": True}
    mean = _points(line.curve, smoothed(means, view.smoothing), place, gap)
    faint = base | raw | {"data": _points(line.curve, means, place, gap), "showSymbol": False}
    # The legend takes its sign from the first series of a name.
    return [base | {"data": mean, "showSymbol": False}, faint, *parts]


def _style(line: Line, index: int) -> Option:
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
    return style | ({"color": line.colour} if line.colour else {})


def _band(line: Line, index: int, view: View, place: Placing, gap: float) -> list[Option]:
    """From least to most, where a bucket holds several steps or a value has an interval: a line around it, filled.

    One series and no stack: each takes a browser as long as a curve does."""
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
    """There along the highest and back along the lowest, for each stretch without a hole."""
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
    """[x, y] of each cell; a hole in the steps, and a value that is not finite, breaks the line."""
    points: list[Point] = []
    before: int | None = None
    for cell, value in zip(curve, values, strict=True):
        if before is not None and cell.step_from - before > gap:
            points.append([place(before + 1), None])
        points.append([place(cell.step_to), _rounded(value)])
        before = cell.step_to
    return points


def _usual_distance(curve: Curve) -> float:
    """Steps between values: some metrics come every tenth step, and that is no gap."""
    distances = sorted(after.step_from - before.step_to for before, after in pairwise(curve))
    return max(1.0, float(distances[len(distances) // 2])) if distances else 1.0


def is_wide(low: float | None, high: float | None) -> bool:
    """Whether there is something between the two."""
    return low is not None and high is not None and high > low


def _loggable(values: Sequence[float | None], log: bool) -> list[float | None]:
    return [None if value is None or (log and value <= 0) else value for value in values]


def _rounded(value: float | None) -> float | None:
    """Seven digits are more than a screen shows, and half the bytes."""
    return None if value is None else float(f"{value:.7g}")
