"""ECharts options of curves over steps. Pure: no Streamlit, no store, no clock on the wall."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from dapo_dashboard import palette
from dapo_dashboard.clock import Clock
from dapo_dashboard.curves import Curve, flagged_ranges, smoothed
from dapo_dashboard.marks import Kind, Mark
from dapo_dashboard.view import View

Option = dict[str, Any]
Columns = dict[str, list[float | None]]
HEIGHT: Final = 250
# Room in pixels for the labels of an axis; the link of pointers between charts needs to know it as well.
LEFT: Final = 50
RIGHT: Final = 14
RIGHT_AXIS: Final = 50
TOP: Final = 34
BOTTOM: Final = 26
DOTS_UP_TO: Final = 40
_UNITS: Final = ((1e9, "G"), (1e6, "M"), (1e3, "k"))


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
class Chart:
    """A panel of the page. `key` is its identity, `help_anchor` the part of the help page about it."""

    key: str
    title: str
    unit: str
    lines: Sequence[Line]
    right_unit: str = ""
    help_anchor: str = ""
    from_zero: bool = False


def grid_sides(chart: Chart) -> tuple[int, int]:
    """Pixels left and right of the plot."""
    return LEFT, RIGHT_AXIS if any(line.right for line in chart.lines) else RIGHT


def extent(charts: Sequence[Chart], view: View) -> tuple[float, float] | None:
    """The steps that all charts show."""
    if view.window is not None:
        return view.window
    steps = [step for chart in charts for line in chart.lines if line.curve for step in _ends(line.curve)]
    return (min(steps), max(steps)) if steps else None


def _ends(curve: Curve) -> tuple[int, int]:
    return curve[0].step_from, curve[-1].step_to


def option(
    chart: Chart,
    view: View,
    *,
    clock: Clock = Clock(),  # noqa: B008  frozen
    marks: Sequence[Mark] = (),
    steps: tuple[float, float] | None = None,
) -> Option:
    """The chart as ECharts draws it. `steps` is the range shown, the same on all charts of a page."""
    drawn = [line for line in chart.lines if line.curve]
    scale, x_unit = _x_unit(view, clock, steps)
    place = _Placing(view, clock, scale)
    series = [part for index, line in enumerate(drawn) for part in _series(line, index, view, place)]
    series.append(_happenings(drawn, marks, place, steps))
    left, right = grid_sides(chart)
    return {
        "animation": False,
        "aria": {"enabled": True},
        "grid": {"left": left, "right": right, "top": TOP, "bottom": BOTTOM, "outerBoundsMode": "none"},
        "legend": _legend(drawn),
        "tooltip": {
            "trigger": "axis",
            "confine": True,
            "valueFormatter": "%.4g",
            "axisPointer": {"type": "line", "snap": False},
            "textStyle": {"fontSize": 12},
        },
        "xAxis": _x_axis(view, place, steps, x_unit),
        "yAxis": _y_axes(chart, view),
        "series": series,
    }


def columns(chart: Chart, view: View, clock: Clock = Clock()) -> Columns:  # noqa: B008  frozen
    """The same as a table: a row a step, a column a curve, with least and most where a row stands for several steps."""
    steps = sorted({cell.step_to for line in chart.lines for cell in line.curve})
    table: Columns = {"step": [float(step) for step in steps]}
    if view.axis != "step":
        table[view.axis] = [clock.place(step, view.axis) for step in steps]
    for line in chart.lines:
        cells = {cell.step_to: cell for cell in line.curve}
        rows = [cells.get(step) for step in steps]
        table[line.name] = [None if cell is None else cell.mean for cell in rows]
        if any(_is_wide(cell.min, cell.max) for cell in line.curve):
            table[f"{line.name}, least"] = [None if cell is None else cell.min for cell in rows]
            table[f"{line.name}, most"] = [None if cell is None else cell.max for cell in rows]
    return table


@dataclass(frozen=True)
class _Placing:
    view: View
    clock: Clock
    scale: float

    def __call__(self, step: float) -> float | None:
        place = self.clock.place(step, self.view.axis)
        return None if place is None else place / self.scale


def _x_unit(view: View, clock: Clock, steps: tuple[float, float] | None) -> tuple[float, str]:
    if view.axis != "tokens" or steps is None:
        return 1.0, ""
    most = clock.place(steps[1], "tokens") or 0.0
    return next(((size, f"{name} tokens") for size, name in _UNITS if most >= size), (1.0, "tokens"))


def _series(line: Line, index: int, view: View, place: _Placing) -> list[Option]:
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


def _band(line: Line, index: int, view: View, place: _Placing, gap: float) -> list[Option]:
    """From least to most, where a bucket holds several steps or a value has an interval."""
    if not any(_is_wide(cell.min, cell.max) for cell in line.curve):
        return []
    lows = _loggable([cell.min for cell in line.curve], view.log)
    highs = [cell.max for cell in line.curve]
    spans = [None if low is None or high is None else high - low for low, high in zip(lows, highs, strict=True)]
    hidden = _style(line, index) | {
        "stack": f"band{index}",
        "stackStrategy": "all",
        "lineStyle": {"width": 0, "opacity": 0},
        "showSymbol": False,
        "silent": True,
        "tooltip": {"show": False},
        "z": 2,
    }
    return [
        hidden | {"data": _points(line.curve, lows, place, gap)},
        hidden | {"data": _points(line.curve, spans, place, gap), "areaStyle": {"opacity": 0.2}},
    ]


def _points(curve: Curve, values: Sequence[float | None], place: _Placing, gap: float) -> list[list[float | None]]:
    """[x, y] of each cell; a hole in the steps, and a value that is not finite, breaks the line."""
    points: list[list[float | None]] = []
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


def _is_wide(low: float | None, high: float | None) -> bool:
    return low is not None and high is not None and high > low


def _loggable(values: Sequence[float | None], log: bool) -> list[float | None]:
    return [None if value is None or (log and value <= 0) else value for value in values]


def _rounded(value: float | None) -> float | None:
    """Seven digits are more than a screen shows, and half the bytes."""
    return None if value is None else float(f"{value:.7g}")


_MARK_STYLES: Final[Mapping[Kind, Option]] = {
    "restart": {"lineStyle": {"color": palette.RESTART, "type": "dashed", "width": 1.5}},
    "suspend": {"lineStyle": {"color": palette.SUSPEND, "type": "dotted", "width": 1.5}},
    "alert": {"lineStyle": {"color": palette.ALERT, "type": "solid", "width": 1.5}},
    "checkpoint": {"lineStyle": {"color": palette.CHECKPOINT, "type": "solid", "width": 1, "opacity": 0.25}},
}
# A sign at the top or the bottom of the line, so that the colour is not the only difference.
_MARK_SIGNS: Final[Mapping[Kind, Option]] = {
    "restart": {"symbol": "triangle", "symbolRotate": 180, "y": TOP + 3, "itemStyle": {"color": palette.RESTART}},
    "suspend": {"symbol": "rect", "y": TOP + 3, "itemStyle": {"color": palette.SUSPEND}},
    "alert": {"symbol": "diamond", "symbolSize": 9, "y": TOP + 3, "itemStyle": {"color": palette.ALERT}},
    "checkpoint": {"symbol": "triangle", "y": HEIGHT - BOTTOM - 4, "itemStyle": {"color": palette.CHECKPOINT}},
}


def _happenings(
    lines: Sequence[Line], marks: Sequence[Mark], place: _Placing, steps: tuple[float, float] | None
) -> Option:
    """A curve without points that carries the marks and the ranges in which values were not finite."""
    shown = [mark for mark in marks if steps is None or steps[0] <= mark.step <= steps[1]]
    return {
        "type": "line",
        "name": "marks",
        "data": [],
        "silent": True,
        "tooltip": {"show": False},
        "markLine": {
            "silent": True,
            "animation": False,
            "symbol": ["none", "none"],
            "label": {"show": False},
            "data": [{"xAxis": place(mark.step), **_MARK_STYLES[mark.kind]} for mark in shown],
        },
        "markPoint": {
            "silent": True,
            "animation": False,
            "symbolSize": 7,
            "label": {"show": False},
            "data": [{"coord": [place(mark.step), 0], **_MARK_SIGNS[mark.kind]} for mark in shown],
        },
        "markArea": {
            "silent": True,
            "itemStyle": {"color": palette.NOT_FINITE},
            "label": {"show": True, "position": "insideTop", "color": palette.ALERT, "fontSize": 10},
            "data": [
                [{"name": "not finite", "xAxis": place(start - 0.5)}, {"xAxis": place(end + 0.5)}]
                for start, end in flagged_ranges(line.curve for line in lines)
            ],
        },
    }


def _legend(lines: Sequence[Line]) -> Option:
    return {
        "type": "scroll",
        "top": 0,
        "left": 0,
        "itemWidth": 16,
        "itemHeight": 12,
        "symbolKeepAspect": True,
        "itemGap": 12,
        "textStyle": {"fontSize": 11.5},
        "data": [line.name for line in lines],
    }


def _x_axis(view: View, place: _Placing, steps: tuple[float, float] | None, unit: str) -> Option:
    axis: Option = {
        "type": "time" if view.axis == "time" else "value",
        "splitLine": {"show": False},
        "axisLabel": {"fontSize": 11, "hideOverlap": True},
        "axisTick": {"show": True, "length": 3},
        "axisLine": {"onZero": False},
    }
    if view.axis == "step":
        axis |= {"minInterval": 1, "axisPointer": {"label": {"formatter": "step {value}", "precision": 0}}}
    if view.axis == "tokens":
        axis["axisPointer"] = {"label": {"formatter": f"{{value}} {unit}", "precision": 3}}
    if steps is not None:
        start, end = place(steps[0]), place(steps[1])
        axis |= {"min": start, "max": end if end != start or start is None else start + 1}
    return axis


def _y_axes(chart: Chart, view: View) -> list[Option]:
    stacked = any(line.stack for line in chart.lines)
    left: Option = {
        "type": "log" if view.log and not stacked else "value",
        "scale": not (stacked or chart.from_zero),
        "splitNumber": 4,
        "axisLabel": {"fontSize": 11, "hideOverlap": True},
        "axisPointer": {"show": False},
    }
    if chart.unit == "%" and stacked:
        left |= {"max": 100, "interval": 25}
    if not any(line.right for line in chart.lines):
        return [left]
    right = left | {"position": "right", "splitLine": {"show": False}, "type": "value", "scale": True}
    right = {name: value for name, value in right.items() if name not in ("max", "interval")}
    return [left, right]


def spoken(chart: Chart) -> str:
    """What a screen reader says of a chart: its curves, where they began and where they are."""
    ends = []
    for line in chart.lines:
        finite = [bucket for bucket in line.curve if bucket.mean is not None]
        if finite:
            ends.append(f"{line.name} from {finite[0].mean:.3g} to {finite[-1].mean:.3g}")
    last = max((line.curve[-1].step_to for line in chart.lines if line.curve), default=0)
    return f"{chart.title} up to step {last}: {'; '.join(ends).replace(' →', '')}"
