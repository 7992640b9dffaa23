"""The parts of the comparison: curves, the runs' results as tables and bars, and the differences of their jobs."""

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Final

import streamlit as st

from dapo_core.db import RunRow
from dapo_core.run import metrics
from dapo_core.run.formatting import duration
from dapo_dashboard import context
from dapo_dashboard.charts import intervals
from dapo_dashboard.escaping import shown
from dapo_dashboard.pages import compare_curves
from dapo_dashboard.pages.widgets import frame
from dapo_dashboard.reads import compared_curves, comparison
from dapo_dashboard.reads.comparison import Outcome, RunGroup

RESULTS: Final = (
    metrics.REWARD_GENERATED,
    metrics.ACCURACY_GENERATED,
    metrics.LENGTH_MEAN,
    metrics.ENTROPY,
    metrics.STEP_SECONDS,
)


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
        frame(table),
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
        compare_curves.no_steps()
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
    """The fields in which the jobs differ; `≠` marks what differs from the reference run."""
    rows = comparison.differences(runs)
    if not rows:
        st.info("These runs have the same job.", icon=":material/equal:")
        return
    ids = [run.run_id for run in runs]
    reference = st.selectbox("Reference", ids, key="reference", bind="query-params", width=320)
    first = ids.index(reference)
    table = {"Field": list(rows)}
    # The reference first, next to the names of the fields.
    for index in [first, *(index for index in range(len(ids)) if index != first)]:
        marks = [index != first and values[index] != values[first] for values in rows.values()]
        cells = [shown(values[index], 300) for values in rows.values()]
        table[shown(ids[index], 128)] = [f"≠ {cell}" if mark else cell for cell, mark in zip(cells, marks, strict=True)]
    st.dataframe(
        frame(table),
        hide_index=True,
        column_config={"Field": st.column_config.TextColumn(pinned=True)},
        alt=f"{len(rows)} fields in which the jobs differ",
    )


VIEWS: Final[Mapping[str, Callable[[Sequence[RunRow], Sequence[RunGroup]], None]]] = {
    "Curves": compare_curves.curves,
    "Results": results,
    "Differences": differences,
}


def _outcomes(runs: Sequence[RunRow]) -> list[Outcome]:
    ids = tuple(run.run_id for run in runs)
    reader = context.reader()
    known = set(compared_curves.metric_names(reader, ids))
    names = [name for name in RESULTS if name in known]
    validations = reader.read(("validations", ids), lambda db, _: db.validations(ids), max_age=1.5).value
    return comparison.outcomes(ids, validations, compared_curves.series(reader, ids, names), names)


def _duration(run: RunRow) -> str:
    return "" if run.started_at is None or run.ended_at is None else duration(run.ended_at - run.started_at)
