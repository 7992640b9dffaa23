"""The results of `dapo evaluate` for a run's checkpoints: shares in percent, with 95% intervals over prompts."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import streamlit as st

from dapo_core.db import EvaluationRow, RunRow
from dapo_core.run.formatting import moment, percent
from dapo_dashboard import context
from dapo_dashboard.charts import intervals
from dapo_dashboard.charts.intervals import Interval
from dapo_dashboard.escaping import markdown, shown
from dapo_dashboard.pages.widgets import frame, steady_table

Results = Mapping[str, Any]
_SHARES: Final = ("mean@", "pass@", "maj@", "Truncated", "No answer")


def show(run: RunRow) -> None:
    """A row for each evaluation, mean@k by step, and for the selected one its pass@k, maj@k and subsets."""
    rows = context.reader().read(("evaluations", run.run_id), lambda db, _: db.evaluations(run.run_id)).value
    if not rows:
        st.info("No checkpoint of this run has been evaluated yet. Evaluate the newest:", icon=":material/quiz:")
        st.code(f"dapo evaluate {run.run_id}", language="bash")
        return
    table = _table(rows)
    selection = steady_table(
        table,
        [row.evaluation_id for row in rows],
        key="evaluations-table",
        column_config=_formats(table),
        selection_mode="single-row-required",
        alt=f"Table of {len(rows)} evaluations, newest first",
    )
    _by_step(rows)
    _details(rows[next(iter(selection["rows"]), 0)])


def _by_step(rows: Sequence[EvaluationRow]) -> None:
    by_set: dict[str, dict[int, Interval]] = {}
    for row in rows:  # newest first: of a checkpoint that was evaluated again, the last evaluation counts
        if row.step is not None:
            steps = by_set.setdefault(f"{row.set_name}, mean@{row.results['samples']}", {})
            steps.setdefault(row.step, row.results["mean"])
    if max((len(steps) for steps in by_set.values()), default=0) < 2:
        return
    st.markdown("**mean@k by checkpoint**, with its 95% interval over prompts")
    st.echarts_chart(
        intervals.evaluations_by_step({name: list(steps.items()) for name, steps in by_set.items()}),
        height=260,
        key="evaluations-by-step",
        alt="; ".join(
            _spoken({f"{name} at step {step}": one for step, one in sorted(steps.items())})
            for name, steps in by_set.items()
        ),
    )


def _details(row: EvaluationRow) -> None:
    results, samples = row.results, row.results["samples"]
    error = results["sampling_error"]
    margin = "" if error is None else f" ± {100 * error:.1f} points from sampling alone."
    st.markdown(
        f"**{markdown(row.set_name, 80)}** at step {row.step}: {results['prompts']} prompts, {samples} samples "
        f"each.{margin}"
    )
    passes = {f"pass@{k}": one for k, one in results["pass_at"].items() if k != "1"}
    subsets: Mapping[str, Results] = results.get("subsets") or {}
    left, right = st.columns(2, gap="medium")
    with left:
        _chart("whole", {f"mean@{samples}": results["mean"], **passes, f"maj@{samples}": results["majority"]})
    with right:
        if subsets:
            _chart("subsets", {name: one["mean"] for name, one in subsets.items()})
    if subsets:
        table = {"Subset": [shown(name, 80) for name in subsets], **_figures(list(subsets.values()))}
        st.dataframe(
            frame(table), column_config=_formats(table), hide_index=True, alt=f"Table of {len(subsets)} subsets"
        )


def _chart(key: str, estimates: Mapping[str, Interval]) -> None:
    st.echarts_chart(
        intervals.evaluation_rows(estimates),
        height=intervals.evaluation_height(len(estimates)),
        key=f"evaluation-{key}",
        alt=_spoken(estimates),
    )


def _table(rows: Sequence[EvaluationRow]) -> dict[str, list[Any]]:
    return {
        "Step": [row.step for row in rows],
        "Set": [shown(row.set_name, 80) for row in rows],
        "Time": [moment(row.created_at) for row in rows],
        **_figures([row.results for row in rows]),
        "Sampling": [_sampling(row) for row in rows],
    }


def _figures(results: Sequence[Results]) -> dict[str, list[Any]]:
    """The same columns for whole sets and for subsets; k has its own column where it is not the same in all rows."""
    ks = [str(one["samples"]) for one in results]
    k = ks[0] if len(set(ks)) == 1 else "k"
    return {
        "Prompts": [one["prompts"] for one in results],
        **({} if k != "k" else {"k": ks}),
        f"mean@{k}": [100 * one["mean"]["value"] for one in results],
        "95% interval": [_interval(one["mean"]) for one in results],
        f"pass@{k}": [100 * one["pass_at"][str(one["samples"])]["value"] for one in results],
        f"maj@{k}": [100 * one["majority"]["value"] for one in results],
        "Tokens": [one["lengths"]["mean"] for one in results],
        "Truncated": [100 * one["truncated"] for one in results],
        "No answer": [100 * one["unstated"] for one in results],
    }


def _formats(table: Mapping[str, Sequence[object]]) -> dict[str, object]:
    formats: dict[str, object] = {
        name: st.column_config.NumberColumn(format="%.1f%%") for name in table if name.startswith(_SHARES)
    }
    return formats | {"Tokens": st.column_config.NumberColumn(format="%.0f", help="Mean length of a response")}


def _sampling(row: EvaluationRow) -> str:
    """`temperature 1, top-p 0.7, at most 20,480 tokens`."""
    options = row.sampling
    parts = [f"temperature {options['temperature']:g}"] if "temperature" in options else []
    parts += [f"top-p {options['topP']:g}"] if "topP" in options else []
    parts += [f"at most {options['maxResponseTokens']:,} tokens"] if "maxResponseTokens" in options else []
    return ", ".join(parts)


def _interval(estimate: Interval) -> str:
    """`37.5% to 62.5%`; empty where a single prompt gives none."""
    low, high = estimate.get("low"), estimate.get("high")
    return "" if low is None or high is None else f"{percent(low)} to {percent(high)}"


def _spoken(estimates: Mapping[str, Interval]) -> str:
    """The text for screen readers."""
    return "; ".join(f"{name} {percent(one['value'])} ({_interval(one)})" for name, one in estimates.items())
