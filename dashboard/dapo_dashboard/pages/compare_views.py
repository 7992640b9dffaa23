"""The parts of the comparison: curves of several runs in one chart for each metric, their results as tables and bars,
and the differences of their jobs."""

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Final

import pandas as pd
import streamlit as st

from dapo_core.db import RunRow
from dapo_core.errors import StoreError
from dapo_core.run import metrics
from dapo_core.run.formatting import duration
from dapo_dashboard import context
from dapo_dashboard.charts import intervals, palette, panels
from dapo_dashboard.charts.buckets import BUCKETS, Curve
from dapo_dashboard.charts.curve_chart import CurveChart, PlotLine
from dapo_dashboard.charts.view import ChartView, StepClock
from dapo_dashboard.escaping import markdown, shown
from dapo_dashboard.pages.chart_grid import chart_grid, draw, toolbar
from dapo_dashboard.reads import comparison
from dapo_dashboard.reads.comparison import Outcome, RunGroup
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
RESULTS: Final = (
    metrics.REWARD_GENERATED,
    metrics.ACCURACY_GENERATED,
    metrics.LENGTH_MEAN,
    metrics.ENTROPY,
    metrics.STEP_SECONDS,
)
Series = Mapping[tuple[str, str], Curve]


def curves(runs: Sequence[RunRow], groups: Sequence[RunGroup]) -> None:
    """A chart for each metric with a curve for each group: validation first, then the usual ones, then any other."""
    names = _metric_names(runs)
    usual = [*metrics.validation_means(names), *(name for name in USUAL if name in names)]
    view, more = toolbar([name for name in names if name not in usual], axes=("step",))
    wanted = [*usual, *more]
    series = _read(runs, wanted, view.window)
    charts = [chart for name in wanted if (chart := _chart(name, groups, series)).lines]
    if not charts:
        _no_steps()
        return
    draw(chart_grid(charts, 2, view, StepClock()), "compare-charts", lambda chart: _csv(runs, chart, view))


def _csv(runs: Sequence[RunRow], chart: CurveChart, view: ChartView) -> tuple[str, str] | None:
    try:
        run_ids = [run.run_id for run in runs]
        return f"{chart.key}.csv", points_csv(context.reader(), run_ids, chart.metrics, view.window)
    except StoreError as error:
        st.warning(markdown(error, 400), icon=":material/download:")
        return None


def results(runs: Sequence[RunRow], groups: Sequence[RunGroup]) -> None:
    """What came out: a row for each run, and a bar for each group."""
    found = _outcomes(runs)
    table: dict[str, list[object]] = {
        "Run": [shown(run.run_id, 128) for run in runs],
        "State": [run.state for run in runs],
        "Duration": [_duration(run) for run in runs],
        **{_headed(one): [one.values.get(run.run_id) for run in runs] for one in found},
    }
    st.dataframe(
        pd.DataFrame(table),
        hide_index=True,
        placeholder="",
        column_config={
            "Run": st.column_config.TextColumn(pinned=True),
            **{_headed(one): st.column_config.NumberColumn(format="%.4g") for one in found},
        },
        alt=f"Results of {len(runs)} runs",
    )
    st.caption("The best is that of all validations of a run. Point at the table to download it as CSV.")
    _bars(groups, [one for one in found if not one.title.endswith("step")])


def _headed(outcome: Outcome) -> str:
    return f"{outcome.title} ({outcome.unit})" if outcome.unit else outcome.title


def _bars(groups: Sequence[RunGroup], found: Sequence[Outcome]) -> None:
    """A bar for each group, with the spread over the group's runs."""
    if not found:
        _no_steps()
        return
    by_title = {one.title: one for one in found}
    title = st.selectbox("Compare", list(by_title), key="outcome", bind="query-params", width=420)
    one = by_title[title]
    by_group = {group.name: [one.values[run] for run in group.run_ids if run in one.values] for group in groups}
    bars = {group: values for group, values in by_group.items() if values}
    st.echarts_chart(
        intervals.ablation(bars, one.unit),
        height=intervals.ablation_height(len(bars)),
        key="ablation",
        alt="; ".join(f"{group}: {fmean(values):.4g} over {len(values)} runs" for group, values in bars.items()),
    )
    st.caption(
        "A bar is the mean of a group's runs, a point is a run, the line goes from their minimum to the maximum."
    )


def differences(runs: Sequence[RunRow], groups: Sequence[RunGroup]) -> None:
    """The fields in which the jobs differ."""
    rows = comparison.differences(runs)
    if not rows:
        st.info("These runs have the same job.", icon=":material/equal:")
        return
    table = {"Field": list(rows)}
    for index, run in enumerate(runs):
        table[shown(run.run_id, 128)] = [shown(values[index], 300) for values in rows.values()]
    st.dataframe(
        pd.DataFrame(table),
        hide_index=True,
        column_config={"Field": st.column_config.TextColumn(pinned=True)},
        alt=f"{len(rows)} fields in which the jobs differ",
    )


VIEWS: Final[Mapping[str, Callable[[Sequence[RunRow], Sequence[RunGroup]], None]]] = {
    "Curves": curves,
    "Results": results,
    "Differences": differences,
}


def _chart(name: str, groups: Sequence[RunGroup], series: Series) -> CurveChart:
    lines = []
    for index, group in enumerate(groups):
        members = [curve for run_id in group.run_ids if (curve := series.get((run_id, name)))]
        if not members:
            continue
        curve = panels.in_axis_unit(name, comparison.band(members))
        color, dash = palette.run_color(index)
        count = f" (n={len(members)})" if len(group.run_ids) > 1 else ""
        lines.append(PlotLine(shown(group.name, 60) + count, curve, color=color, dash=dash, metric=name))
    panel = metrics.panel_of(name)
    key = panels.key_of("compare", name)
    anchor = panel.anchor if panel else ""
    return CurveChart(key, metrics.title_of(name), panels.axis_unit(name), lines, help_anchor=anchor)


def _metric_names(runs: Sequence[RunRow]) -> list[str]:
    """All metrics that any of the runs has."""
    reader = context.reader()
    names: set[str] = set()
    for run in runs:
        names |= set(reader.read(("names", run.run_id), _names_of(run.run_id)).value)
    return sorted(names)


def _names_of(run_id: str) -> context.Load[list[str]]:
    return lambda db, _: db.metrics(run_id)


def _read(runs: Sequence[RunRow], names: Sequence[str], window: tuple[int, int] | None = None) -> Series:
    """The curves of all runs on common steps, in one query."""
    ids, wanted = tuple(run.run_id for run in runs), tuple(names)
    start, end = window or (None, None)
    reading = context.reader().read(
        ("compared", ids, wanted, window),
        lambda db, _: db.buckets(ids, wanted, buckets=BUCKETS // 2, from_step=start, to_step=end),
        max_age=1.5,
    )
    return reading.value


def _outcomes(runs: Sequence[RunRow]) -> list[Outcome]:
    ids = tuple(run.run_id for run in runs)
    names = [name for name in RESULTS if name in _metric_names(runs)]
    validations = context.reader().read(("validations", ids), lambda db, _: db.validations(ids), max_age=1.5).value
    return comparison.outcomes(ids, validations, _read(runs, names), names)


def _duration(run: RunRow) -> str:
    return "" if run.started_at is None or run.ended_at is None else duration(run.ended_at - run.started_at)


def _no_steps() -> None:
    st.info("None of these runs has finished a step yet.", icon=":material/hourglass_top:")
