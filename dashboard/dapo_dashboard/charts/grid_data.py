"""What the browser is sent to draw the charts of a page: the steps once, and for each curve its values at some of them.

Pure. `browser/aligned.js` reads it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from dapo_dashboard.charts.buckets import Curve, flagged_ranges, smoothed
from dapo_dashboard.charts.curve_chart import CurveChart, PlotLine, extent, spoken
from dapo_dashboard.charts.marks import Mark
from dapo_dashboard.charts.view import ChartView, StepClock

GridData = dict[str, Any]
Values = list[float | None]
# Points of shorter curves are drawn as dots too.
DOTS_UP_TO: Final = 40
_TOKEN_UNITS: Final = ((1e9, "G tokens"), (1e6, "M tokens"), (1e3, "k tokens"), (1.0, "tokens"))
# Of milliseconds.
_TIME_UNITS: Final = ((3.6e6, "hours"), (6e4, "minutes"), (1e3, "seconds"))


@dataclass(frozen=True)
class _Points:
    """A curve at its own steps, with a step without a value wherever steps are missing. `wide`: there is a band."""

    steps: tuple[int, ...]
    means: Values
    lows: Values
    highs: Values
    wide: bool
    sparse: bool


def grid_data(
    charts: Sequence[CurveChart], view: ChartView, clock: StepClock | None, marks: Sequence[Mark]
) -> GridData:
    """`steps` and, on another axis, their places `x`; `range` is what all charts show; each curve's values `y` stand at
    the positions `at[line.at]` of `steps`, or at all of them, and `old`, what a newer attempt has overwritten, at those
    of `oldAt`. Without a clock, as of several runs, the steps of curves are places on the axis already
    (`charts/common_axis.py`)."""
    shown = extent(charts, view)
    points = [[_points(line.curve, view.log) for line in chart.lines if line.curve] for chart in charts]
    overwritten = {cell.step_to for chart in charts for line in chart.lines for cell in line.overwritten}
    steps = sorted({step for chart in points for line in chart for step in line.steps} | overwritten)
    place = _Place(view, clock, shown)
    # Steps before the clock begins have no place on its axis; nothing is drawn there.
    steps = [step for step in steps if place(step) is not None]
    positions = _Positions(steps)
    data: GridData = {
        "axis": "place" if clock is None and view.axis != "step" else view.axis,
        "unit": place.unit,
        "steps": steps,
        "range": None if shown is None else [place(shown[0]), place(shown[1])],
        "zoomed": view.window is not None,
        "marks": [[mark.kind, place(mark.step), mark.label] for mark in _visible(marks, shown)],
        "charts": [_chart(chart, lines, view, place, positions) for chart, lines in zip(charts, points, strict=True)],
        "at": positions.lists,
    }
    return data if view.axis == "step" else data | {"x": [place(step) for step in steps]}


class _Place:
    """Where a step is on the x axis: itself, Unix seconds, or tokens or training time in `unit`. None if unknown."""

    def __init__(self, view: ChartView, clock: StepClock | None, shown: tuple[float, float] | None) -> None:
        self._view, self._clock = view, clock
        self._scale, self.unit = 1.0, ""
        if view.axis == "time" and clock is not None:
            self._scale = 1000.0
        elif view.axis != "step" and shown is not None:
            units = _TIME_UNITS if view.axis == "time" else _TOKEN_UNITS
            most = self(shown[1]) or 0.0
            self._scale, self.unit = next((unit for unit in units if most >= unit[0]), units[-1])

    def __call__(self, step: float) -> float | None:
        found = step if self._clock is None else self._clock.place(step, self._view.axis)
        return None if found is None else found / self._scale

    def told(self, step: int) -> str:
        """In words: `step 20`, or `1.25 hours` where steps are places."""
        if self._clock is not None or self._view.axis == "step":
            return f"step {step}"
        return f"{step / self._scale:.4g} {self.unit}"


class _Positions:
    """Where the steps of curves are in the steps of the page; curves at the same steps share a list."""

    def __init__(self, steps: Sequence[int]) -> None:
        self._at = {step: position for position, step in enumerate(steps)}
        self._known: dict[tuple[int, ...], int] = {tuple(steps): -1}
        self.lists: list[list[int]] = []

    def of(self, steps: tuple[int, ...]) -> int:
        """The number of the list, -1 for all steps."""
        if steps not in self._known:
            self._known[steps] = len(self.lists)
            self.lists.append([self._at[step] for step in steps if step in self._at])
        return self._known[steps]

    def kept(self, steps: Sequence[int], values: Values) -> Values:
        """The values at steps that are drawn."""
        return [_digits(value) for step, value in zip(steps, values, strict=True) if step in self._at]


def _chart(
    chart: CurveChart, points: Sequence[_Points], view: ChartView, place: _Place, positions: _Positions
) -> GridData:
    drawn = [line for line in chart.lines if line.curve]
    broken = flagged_ranges(line.curve for line in drawn)
    stacked = any(line.stack for line in drawn)
    return {
        "key": chart.key,
        "title": chart.title,
        "unit": chart.unit,
        "rightUnit": chart.right_unit if any(line.right for line in drawn) else "",
        "help": chart.help_anchor or "all",
        "zero": stacked or chart.from_zero,
        "full": stacked and chart.unit == "%",
        "log": view.log and not stacked,
        "spoken": spoken(chart, place.told),
        "broken": [[place(start - 0.5), place(end + 0.5)] for start, end in broken],
        "lines": [_line(line, each, view, positions) for line, each in zip(drawn, points, strict=True)],
    }


def _line(line: PlotLine, points: _Points, view: ChartView, positions: _Positions) -> GridData:
    data: GridData = {
        "name": line.name,
        "color": line.color,
        "dash": line.dash,
        "right": line.right,
        "stack": line.stack,
        "dots": len(line.curve) <= DOTS_UP_TO,
        "at": positions.of(points.steps),
        "y": positions.kept(points.steps, points.means),
    }
    if points.wide and not line.stack:
        data |= {
            "low": positions.kept(points.steps, points.lows),
            "high": positions.kept(points.steps, points.highs),
        }
    if line.overwritten:
        old = tuple(cell.step_to for cell in line.overwritten)
        values = [_drawn(cell.mean, view.log) for cell in line.overwritten]
        data |= {"oldAt": positions.of(old), "old": positions.kept(old, values)}
    # A metric recorded every tenth step has too few values to average.
    if view.smoothing > 0 and not points.sparse and not line.stack:
        data |= {"smooth": positions.kept(points.steps, smoothed(points.means, view.smoothing))}
    return data


def _points(curve: Curve, log: bool) -> _Points:
    """Missing steps and values that are not finite break the line, and on a log scale values that are not positive."""
    usual = _usual_distance(curve)
    steps: list[int] = []
    means: Values = []
    lows: Values = []
    highs: Values = []
    before: int | None = None
    for cell in curve:
        if before is not None and cell.step_from - before > 2.5 * usual:
            steps.append(before + 1)
            for values in (means, lows, highs):
                values.append(None)
        steps.append(cell.step_to)
        for values, value in ((means, cell.mean), (lows, cell.min), (highs, cell.max)):
            values.append(_drawn(value, log))
        before = cell.step_to
    wide = any(low is not None and high is not None and high > low for low, high in zip(lows, highs, strict=True))
    return _Points(tuple(steps), means, lows, highs, wide, usual > 1)


def _drawn(value: float | None, log: bool) -> float | None:
    return None if value is None or (log and value <= 0) else value


def _usual_distance(curve: Curve) -> float:
    """The median number of steps between values: a metric recorded every tenth step has no gaps."""
    distances = sorted(after.step_from - before.step_to for before, after in pairwise(curve))
    return max(1.0, float(distances[len(distances) // 2])) if distances else 1.0


def _visible(marks: Iterable[Mark], shown: tuple[float, float] | None) -> list[Mark]:
    return [mark for mark in marks if shown is None or shown[0] <= mark.step <= shown[1]]


def _digits(value: float | None) -> float | None:
    """To five digits: more than a screen shows, and half the bytes."""
    return None if value is None else float(f"{value:.5g}")
