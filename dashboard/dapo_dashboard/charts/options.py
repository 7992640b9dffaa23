"""ECharts options of curves over steps. Pure: no Streamlit, no database, no current time."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from dapo_dashboard.charts.buckets import Curve
from dapo_dashboard.charts.marks import Mark, layer
from dapo_dashboard.charts.series import (
    BOTTOM,
    LEFT,
    RIGHT,
    RIGHT_AXIS,
    TOP,
    Option,
    Placing,
    PlotLine,
    is_wide,
    series_of,
)
from dapo_dashboard.charts.view import ChartView, StepClock

Columns = dict[str, list[float | None]]
_UNITS: Final = ((1e9, "G"), (1e6, "M"), (1e3, "k"))


@dataclass(frozen=True)
class CurveChart:
    """A chart of curves over steps. `key` identifies it, `help_anchor` is its section of the help page."""

    key: str
    title: str
    unit: str
    lines: Sequence[PlotLine]
    right_unit: str = ""
    help_anchor: str = ""
    from_zero: bool = False


def grid_sides(chart: CurveChart) -> tuple[int, int]:
    """Pixels left and right of the plot."""
    return LEFT, RIGHT_AXIS if any(line.right for line in chart.lines) else RIGHT


def extent(charts: Sequence[CurveChart], view: ChartView) -> tuple[float, float] | None:
    """First and last of the steps that all charts show; None without any."""
    if view.window is not None:
        return view.window
    steps = [step for chart in charts for line in chart.lines if line.curve for step in _ends(line.curve)]
    return (min(steps), max(steps)) if steps else None


def _ends(curve: Curve) -> tuple[int, int]:
    return curve[0].step_from, curve[-1].step_to


def option(
    chart: CurveChart,
    view: ChartView,
    *,
    clock: StepClock = StepClock(),  # noqa: B008  frozen
    marks: Sequence[Mark] = (),
    steps: tuple[float, float] | None = None,
) -> Option:
    """The chart as ECharts draws it. `steps` is the range to show, the same on all charts of a page."""
    drawn = [line for line in chart.lines if line.curve]
    scale, x_unit = _x_unit(view, clock, steps)
    place = Placing(view, clock, scale)
    series = [part for index, line in enumerate(drawn) for part in series_of(line, index, view, place)]
    series += layer(drawn, marks, place, steps)
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


def columns(chart: CurveChart, view: ChartView, clock: StepClock = StepClock()) -> Columns:  # noqa: B008  frozen
    """The chart as a table: a row for each step, a column for each curve; also the minimum and maximum of curves whose
    buckets hold several steps."""
    steps = sorted({cell.step_to for line in chart.lines for cell in line.curve})
    table: Columns = {"step": [float(step) for step in steps]}
    if view.axis != "step":
        table[view.axis] = [clock.place(step, view.axis) for step in steps]
    for line in chart.lines:
        cells = {cell.step_to: cell for cell in line.curve}
        rows = [cells.get(step) for step in steps]
        table[line.name] = [None if cell is None else cell.mean for cell in rows]
        if any(is_wide(cell.min, cell.max) for cell in line.curve):
            table[f"{line.name}, min"] = [None if cell is None else cell.min for cell in rows]
            table[f"{line.name}, max"] = [None if cell is None else cell.max for cell in rows]
    return table


def _x_unit(view: ChartView, clock: StepClock, steps: tuple[float, float] | None) -> tuple[float, str]:
    if view.axis != "tokens" or steps is None:
        return 1.0, ""
    most = clock.place(steps[1], "tokens") or 0.0
    return next(((size, f"{name} tokens") for size, name in _UNITS if most >= size), (1.0, "tokens"))


def _legend(lines: Sequence[PlotLine]) -> Option:
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


def _x_axis(view: ChartView, place: Placing, steps: tuple[float, float] | None, unit: str) -> Option:
    axis: Option = {
        "type": "time" if view.axis == "time" else "value",
        "splitLine": {"show": False},
        # Right-aligned: a long last label would be cut off in its middle.
        "axisLabel": {"fontSize": 11, "hideOverlap": True, "alignMaxLabel": "right"},
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


def _y_axes(chart: CurveChart, view: ChartView) -> list[Option]:
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


def spoken(chart: CurveChart) -> str:
    """The text for screen readers: the curves with their first and last values."""
    ends = []
    for line in chart.lines:
        finite = [bucket for bucket in line.curve if bucket.mean is not None]
        if finite:
            ends.append(f"{line.name} from {finite[0].mean:.3g} to {finite[-1].mean:.3g}")
    last = max((line.curve[-1].step_to for line in chart.lines if line.curve), default=0)
    return f"{chart.title} up to step {last}: {'; '.join(ends).replace(' →', '')}"
