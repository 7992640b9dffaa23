"""The curves of a run: the paper's three first, then what explains them."""

from collections.abc import Sequence
from typing import Final

import streamlit as st

from dapo_core.db import AttemptRow, RunRow
from dapo_core.errors import StoreError
from dapo_core.run.metrics import validation_means
from dapo_dashboard import context
from dapo_dashboard.charts import marks, panels
from dapo_dashboard.charts.curve_chart import CurveChart
from dapo_dashboard.charts.marks import Mark
from dapo_dashboard.charts.panels import Plot
from dapo_dashboard.charts.view import ChartView, StepClock
from dapo_dashboard.escaping import markdown
from dapo_dashboard.pages import metric_choice, run_steps
from dapo_dashboard.pages.chart_grid import ChartGrid, chart_grid, draw, toolbar
from dapo_dashboard.reads.cached_reader import NewestVersions
from dapo_dashboard.reads.curve_feed import RunCurves, read_clock, read_curves
from dapo_dashboard.reads.metric_search import Choice
from dapo_dashboard.reads.raw_points import points_csv

COLUMNS: Final = 3
_NO_CLOCK: Final = StepClock()
_DRAWN: Final[NewestVersions[ChartGrid]] = NewestVersions(64)
LEGEND: Final = {
    "restart": "▼ ┆ :orange[restart]",
    "suspend": "▪ ┊ :violet[stopped]",
    "alert": "◆ │ :red[alert]",
    "checkpoint": "▲ :green[checkpoint]",
}


def show(run: RunRow) -> None:
    """The toolbar, the charts of all panels, and those of any other metric that is asked for."""
    names = context.reader().read(("names", run.run_id), lambda db, _: db.metrics(run.run_id)).value
    attempts = context.attempts(run.run_id)
    view, choice = toolbar(names, repeats=len(attempts) > 1)
    drawn = _plots(names, choice)
    reading = read_curves(context.reader(), run.run_id, panels.wanted(drawn, names), view.window)
    clock = _NO_CLOCK if view.axis == "step" else read_clock(context.reader(), run.run_id)
    marked = _marks(run, attempts)
    grid = _DRAWN.get(
        (run.run_id, view, tuple(plot.key for plot in drawn)),
        (reading.value.serial, tuple(marked), clock.serial),
        lambda: _grid(drawn, reading.value, view, clock, marked),
    )
    if not grid.charts and (drawn or not names):
        st.info(
            f"No step is finished yet: the run is {run.state}. Curves appear here after the first step.",
            icon=":material/hourglass_top:",
        )
    if not grid.charts:
        return
    draw(grid, "charts", lambda chart: _csv(run, chart, view), run_steps.open_step)
    _legend(marked, any(line.overwritten for chart in grid.charts for line in chart.lines))


def _plots(names: Sequence[str], choice: Choice) -> list[Plot]:
    """Pinned metrics first, then the panels, or with a pattern the metrics that it finds, then others that are asked
    for. A metric of a panel can be pinned, too: it is drawn in both."""
    choice = metric_choice.usable(names, choice)
    found = metric_choice.chosen(names, (), choice)
    free = {name: panels.free_plot(name) for name in found}
    pinned = [free[name] for name in found if name in choice.pinned]
    others = [free[name] for name in found if name not in choice.pinned]
    return [*pinned, *(() if choice.pattern else panels.ALL), *others]


def _grid(
    drawn: Sequence[Plot], read: RunCurves, view: ChartView, clock: StepClock, marked: Sequence[Mark]
) -> ChartGrid:
    validated = next(iter(validation_means(read.curves)), None)
    every = [*marked, *marks.of_validations(read.curves[validated] if validated else ())]
    charts = panels.build(drawn, read.curves)
    if view.overwritten and read.overwritten.curves:
        charts = panels.with_overwritten(charts, read.overwritten.curves)
    return chart_grid(charts, COLUMNS, view, clock, every, opens=True)


def _csv(run: RunRow, chart: CurveChart, view: ChartView) -> tuple[str, str] | None:
    try:
        return f"{run.run_id}-{chart.key}.csv", points_csv(context.reader(), [run.run_id], chart.metrics, view.window)
    except StoreError as error:
        st.warning(markdown(error, 400), icon=":material/download:")
        return None


def _marks(run: RunRow, attempts: Sequence[AttemptRow]) -> list[Mark]:
    reader = context.reader()
    saved = reader.read(("checkpoints", run.run_id), lambda db, _: db.checkpoints(run.run_id)).value
    alerts = reader.read(("all alerts", run.run_id), lambda db, _: db.alerts([run.run_id])).value
    raised = [Mark("alert", alert.first_step, alert.rule) for alert in alerts if alert.first_step is not None]
    return [*marks.of_checkpoints(saved), *marks.of_attempts(attempts), *raised]


def _legend(marked: Sequence[Mark], has_overwritten: bool) -> None:
    """What the marks on the curves mean, and their steps."""
    parts = []
    for kind, symbol in LEGEND.items():
        steps = sorted({mark.step for mark in marked if mark.kind == kind})
        if steps:
            listed = ", ".join(map(str, steps[:4])) + (f" and {len(steps) - 4} more" if len(steps) > 4 else "")
            parts.append(f"{symbol} at {listed}")
    if has_overwritten:
        parts.append("faint dots: overwritten by a newer attempt")
    st.caption(" · ".join([*parts, "drag across a chart to zoom all of them, double-click to reset"]))
