"""Curves of several runs in one chart a metric."""

from collections.abc import Mapping, Sequence

import streamlit as st

from dapo_core.db import RunRow
from dapo_core.run import metrics
from dapo_dashboard import session
from dapo_dashboard.charts import options, palette
from dapo_dashboard.charts.curves import BUCKETS, Curve
from dapo_dashboard.charts.options import Chart
from dapo_dashboard.charts.panels import axis_unit
from dapo_dashboard.charts.panels import shown as in_unit
from dapo_dashboard.charts.series import Line
from dapo_dashboard.clock import Clock
from dapo_dashboard.pages import toolbar
from dapo_dashboard.pages.chart_card import card, draw, link
from dapo_dashboard.plain import shown
from dapo_dashboard.reads import comparison
from dapo_dashboard.reads.comparison import Group

USUAL = (
    metrics.REWARD_GENERATED,
    metrics.ACCURACY_GENERATED,
    metrics.LENGTH_MEAN,
    metrics.ENTROPY,
    metrics.MEAN_PROBABILITY,
    metrics.GROUPS_MIXED,
    metrics.GRADIENT_NORM,
    metrics.STEP_SECONDS,
)
Series = Mapping[tuple[str, str], Curve]


def show(runs: Sequence[RunRow], groups: Sequence[Group]) -> None:
    """Validation first, then what the reader chose."""
    names = metric_names(runs)
    usual = [*metrics.validation_means(names), *(name for name in USUAL if name in names)]
    view, more = toolbar.show([name for name in names if name not in usual], axes=("step",))
    wanted = [*usual, *more]
    curves = read(runs, wanted, view.window)
    found = [chart for name in wanted if (chart := _chart(name, groups, curves)).lines]
    if not found:
        st.info("None of these runs has finished a step yet.", icon=":material/hourglass_top:")
        return
    steps = options.extent(found, view)
    draw([card(chart, view, Clock(), (), steps) for chart in found], 2)
    link(found, view, Clock(), steps)


def metric_names(runs: Sequence[RunRow]) -> list[str]:
    """All metrics that any of the runs has."""
    source = session.source()
    found: set[str] = set()
    for run in runs:
        found |= set(source.read(("names", run.run_id), _names(run.run_id)).value)
    return sorted(found)


def _names(run_id: str) -> session.Load[list[str]]:
    return lambda reader, _: reader.metrics(run_id)


def read(runs: Sequence[RunRow], names: Sequence[str], window: tuple[int, int] | None = None) -> Series:
    """Curves of all runs on common steps, in one query."""
    ids, wanted = tuple(run.run_id for run in runs), tuple(names)
    start, end = window or (None, None)
    return (
        session.source()
        .read(
            ("compared", ids, wanted, window),
            lambda reader, _: reader.buckets(ids, wanted, buckets=BUCKETS // 2, from_step=start, to_step=end),
            max_age=1.5,
        )
        .value
    )


def _chart(name: str, groups: Sequence[Group], curves: Series) -> Chart:
    lines = []
    for index, group in enumerate(groups):
        members = [curve for run_id in group.run_ids if (curve := curves.get((run_id, name)))]
        if not members:
            continue
        curve = comparison.band(members)
        colour, dash = palette.run_colour(index)
        count = f" (n={len(members)})" if len(group.run_ids) > 1 else ""
        label = shown(group.name, 60) + count
        lines.append(Line(label, in_unit(name, curve), colour=colour, dash=dash))
    panel = metrics.panel_of(name)
    key = "compare-" + "".join(letter if letter.isalnum() else "-" for letter in name)
    return Chart(key, metrics.title_of(name), axis_unit(name), lines, help_anchor=panel.anchor if panel else "")
