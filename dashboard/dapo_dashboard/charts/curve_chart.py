"""A chart of curves over steps: what it shows, whichever way it is drawn. Pure: no Streamlit, no database."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dapo_dashboard.charts.buckets import Curve
from dapo_dashboard.charts.view import ChartView


@dataclass(frozen=True)
class PlotLine:
    """One curve of `metric`. `right`: on the right axis; `stack`: filled, on top of the lines before it; `overwritten`:
    points of earlier attempts at steps that a newer one has repeated."""

    name: str
    curve: Curve = ()
    right: bool = False
    color: str | None = None
    dash: str = "solid"
    stack: bool = False
    metric: str = ""
    overwritten: Curve = ()


@dataclass(frozen=True)
class CurveChart:
    """`key` identifies it on its page, `help_anchor` is its section of the help page."""

    key: str
    title: str
    unit: str
    lines: Sequence[PlotLine]
    right_unit: str = ""
    help_anchor: str = ""
    from_zero: bool = False

    @property
    def metrics(self) -> list[str]:
        """The metrics whose points it is drawn from."""
        return list(dict.fromkeys(line.metric for line in self.lines if line.metric and line.curve))


def extent(charts: Sequence[CurveChart], view: ChartView) -> tuple[float, float] | None:
    """First and last of the steps that all charts show; None without any."""
    if view.window is not None:
        return view.window
    ends = [(line.curve[0].step_from, line.curve[-1].step_to) for chart in charts for line in chart.lines if line.curve]
    return (min(start for start, _ in ends), max(end for _, end in ends)) if ends else None


def spoken(chart: CurveChart, place: Callable[[int], str] = "step {}".format) -> str:
    """The text for screen readers: the curves with their first and last values. `place` says where a step is."""
    ends = []
    for line in chart.lines:
        finite = [bucket for bucket in line.curve if bucket.mean is not None]
        if finite:
            ends.append(f"{line.name} from {finite[0].mean:.3g} to {finite[-1].mean:.3g}")
    last = max((line.curve[-1].step_to for line in chart.lines if line.curve), default=0)
    return f"{chart.title} up to {place(last)}: {'; '.join(ends).replace(' →', '')}"
