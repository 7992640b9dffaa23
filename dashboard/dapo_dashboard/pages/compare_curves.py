"""The curves of the comparison: several runs in one chart for each metric, and which metrics these are."""

from collections.abc import Sequence
from typing import Final

import streamlit as st

from dapo_core.db import RunRow
from dapo_core.errors import StoreError
from dapo_core.run import metrics
from dapo_dashboard import context
from dapo_dashboard.charts import palette, panels
from dapo_dashboard.charts.curve_chart import CurveChart, PlotLine
from dapo_dashboard.charts.view import Axis
from dapo_dashboard.escaping import markdown, shown
from dapo_dashboard.pages import metric_choice
from dapo_dashboard.pages.chart_grid import chart_grid, draw, toolbar
from dapo_dashboard.reads import compared_curves, comparison
from dapo_dashboard.reads.compared_curves import Series
from dapo_dashboard.reads.comparison import SPREADS, RunGroup, Spread
from dapo_dashboard.reads.raw_points import points_csv

USUAL: Final = (
    metrics.REWARD_GENERATED,
    metrics.ACCURACY_GENERATED,
    metrics.LENGTH_MEAN,
    metrics.ENTROPY,
    metrics.MEAN_PROBABILITY,
    metrics.GROUPS_MIXED,
    metrics.GRADIENT_NORM,
    metrics.STEP_SECONDS,
)
"""The metrics that are compared without being asked for."""


def curves(runs: Sequence[RunRow], groups: Sequence[RunGroup]) -> None:
    """A chart for each metric with a curve for each group: pinned ones first, then validation and the usual ones, or
    those that a pattern finds, then any other."""
    ids = [run.run_id for run in runs]
    names = compared_curves.metric_names(context.reader(), ids)
    usual = [*metrics.validation_means(names), *(name for name in USUAL if name in names)]
    view, others = toolbar([name for name in names if name not in usual], several_runs=True)
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        choice = metric_choice.ask(names, others.more)
    wanted = metric_choice.chosen(names, usual, metric_choice.usable(names, choice))
    series, spread = compared_curves.series_in_view(context.reader(), ids, wanted, view), _spread(groups)
    _about_axis(view.axis, series.left_out)
    charts = [chart for name in wanted if (chart := _chart(name, groups, series.curves, spread)).lines]
    if charts:
        draw(chart_grid(charts, 2, view, None), "compare-charts", lambda chart: _csv(runs, chart, series.steps))
    elif not names:
        no_steps()


def _about_axis(axis: Axis, left_out: Sequence[str]) -> None:
    """What the x axis is a sum of, and which runs have no place on it."""
    if axis == "step":
        return
    said = {
        "time": "Training time: the duration of each step, added up; pauses and restarts do not count.",
        "tokens": "Tokens of prompts and responses of each step, added up.",
    }
    missing = f" Not recorded by {markdown(', '.join(left_out), 400)}." if left_out else ""
    st.caption(said[axis] + missing)


def _spread(groups: Sequence[RunGroup]) -> Spread:
    """What the bands are, as the viewer chose; asked where there are any."""
    if all(len(group.run_ids) < 2 for group in groups):
        return "range"
    chosen = st.segmented_control(
        "Bands about the mean of n runs", SPREADS, default="range", required=True, key="band", bind="query-params"
    )
    return next((spread for spread in SPREADS if spread == chosen), "range")


def _csv(runs: Sequence[RunRow], chart: CurveChart, steps: tuple[int, int] | None) -> tuple[str, str] | None:
    try:
        run_ids = [run.run_id for run in runs]
        return f"{chart.key}.csv", points_csv(context.reader(), run_ids, chart.metrics, steps)
    except StoreError as error:
        st.warning(markdown(error, 400), icon=":material/download:")
        return None


def _chart(name: str, groups: Sequence[RunGroup], series: Series, spread: Spread) -> CurveChart:
    lines = []
    for index, group in enumerate(groups):
        members = [curve for run_id in group.run_ids if (curve := series.get((run_id, name)))]
        if not members:
            continue
        curve = panels.in_axis_unit(name, comparison.band(members, spread))
        color, dash = palette.run_color(index)
        count = f" (n={len(members)})" if len(group.run_ids) > 1 else ""
        lines.append(PlotLine(shown(group.name, 60) + count, curve, color=color, dash=dash, metric=name))
    panel = metrics.panel_of(name)
    key = panels.key_of("compare", name)
    anchor = panel.anchor if panel else ""
    return CurveChart(key, metrics.title_of(name), panels.axis_unit(name), lines, help_anchor=anchor)


def no_steps() -> None:
    """Say that there is nothing to compare yet."""
    st.info("None of these runs has finished a step yet.", icon=":material/hourglass_top:")
