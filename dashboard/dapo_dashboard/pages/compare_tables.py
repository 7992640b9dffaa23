"""What came out of several runs, as tables and bars, and what differs in their jobs."""

from collections.abc import Sequence

import pandas as pd
import streamlit as st

from dapo_core.db import RunRow
from dapo_core.run import metrics
from dapo_core.run.formatting import duration
from dapo_dashboard.charts import ablation_chart
from dapo_dashboard.charts.curves import Curve
from dapo_dashboard.pages.compare_curves import Series, metric_names, read
from dapo_dashboard.plain import shown
from dapo_dashboard.reads import comparison
from dapo_dashboard.reads.comparison import Group, Outcome

RESULTS = (
    metrics.REWARD_GENERATED,
    metrics.ACCURACY_GENERATED,
    metrics.LENGTH_MEAN,
    metrics.ENTROPY,
    metrics.STEP_SECONDS,
)


def results(runs: Sequence[RunRow]) -> None:
    """Final and best values, a row a run."""
    names = _outcome_metrics(runs)
    curves = read(runs, names)
    table: dict[str, list[object]] = {
        "Run": [shown(run.run_id, 128) for run in runs],
        "State": [run.state for run in runs],
        "Took": [_took(run) for run in runs],
    }
    for name in names:
        outcomes = [_outcome(name, curves.get((run.run_id, name), [])) for run in runs]
        short = name.removeprefix("val-core/")
        table[f"{short}, final"] = [each.final if each else None for each in outcomes]
        table[f"{short}, best"] = [each.best if each else None for each in outcomes]
        table[f"{short}, best at step"] = [each.best_step if each else None for each in outcomes]
    st.dataframe(
        pd.DataFrame(table),
        hide_index=True,
        placeholder="",
        column_config={"Run": st.column_config.TextColumn(pinned=True)},
        alt=f"Final and best values of {len(runs)} runs",
    )
    st.caption(
        "Best is the highest value of any step (the lowest where lower is better); point at the table to download it "
        "as CSV."
    )


def ablation(runs: Sequence[RunRow], groups: Sequence[Group]) -> None:
    """A bar a group: the final or best value of one metric, with the spread over the group's runs."""
    names = _outcome_metrics(runs)
    if not names:
        st.info("None of these runs has finished a step yet.", icon=":material/hourglass_top:")
        return
    with st.container(horizontal=True, vertical_alignment="bottom"):
        name = st.selectbox("Metric", names, key="metric", bind="query-params", width=320)
        which = st.segmented_control(
            "Value", ["best", "final"], default="best", required=True, key="which", bind="query-params"
        )
    curves = read(runs, [name])
    percent = metrics.in_percent(name)
    values = {group.name: _values(group, name, curves, which or "best", 100 if percent else 1) for group in groups}
    kept = {name: each for name, each in values.items() if each}
    st.echarts_chart(
        ablation_chart.option(kept, "%" if percent else ""),
        height=ablation_chart.height(len(kept)),
        key="ablation",
        alt="; ".join(f"{group}: {sum(each) / len(each):.4g} over {len(each)} runs" for group, each in kept.items()),
    )
    st.caption("The bar is the mean of a group's runs, each point a run, the line from the least to the most of them.")


def differences(runs: Sequence[RunRow]) -> None:
    """The fields in which the jobs are not alike."""
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


def _outcome_metrics(runs: Sequence[RunRow]) -> list[str]:
    names = metric_names(runs)
    return [*metrics.validation_means(names), *(name for name in RESULTS if name in names)]


def _values(group: Group, name: str, curves: Series, which: str, factor: float) -> list[float]:
    outcomes = [_outcome(name, curves.get((run_id, name), [])) for run_id in group.run_ids]
    return [factor * (each.best if which == "best" else each.final) for each in outcomes if each is not None]


def _outcome(name: str, curve: Curve) -> Outcome | None:
    return comparison.outcome(curve, lower_is_better=metrics.lower_is_better(name))


def _took(run: RunRow) -> str:
    return "" if run.started_at is None or run.ended_at is None else duration(run.ended_at - run.started_at)
