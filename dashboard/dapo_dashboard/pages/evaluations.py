"""What `dapo evaluate` found of a run's checkpoints."""

from collections.abc import Sequence

import pandas as pd
import streamlit as st

from dapo_core.db import RunRow
from dapo_core.db.evaluations import EvaluationRow
from dapo_dashboard import session
from dapo_dashboard.charts import evaluation_chart
from dapo_dashboard.charts.evaluation_chart import Estimate
from dapo_dashboard.pages import steady_table
from dapo_dashboard.plain import markdown
from dapo_dashboard.reads import evaluation_rows

_SHARES = ("mean@", "pass@", "maj@", "Cut off", "No answer")


def show(run: RunRow) -> None:
    """Every evaluation as a row, mean@k by step, and of the chosen one pass@k, maj@k and subsets."""
    rows = session.source().read(("evaluations", run.run_id), lambda reader, _: reader.evaluations(run.run_id)).value
    if not rows:
        st.info("No checkpoint of this run was evaluated yet. Evaluate its newest:", icon=":material/quiz:")
        st.code(f"dapo evaluate {run.run_id}", language="bash")
        return
    table = evaluation_rows.columns(rows)
    selection = steady_table.draw(
        table,
        [row.evaluation_id for row in rows],
        key="evaluations-table",
        column_config=_formats(table),
        selection_mode="single-row-required",
        alt=f"Table of {len(rows)} evaluations, newest first",
    )
    _steps(rows)
    _one(rows[next(iter(selection["rows"]), 0)])


def _steps(rows: Sequence[EvaluationRow]) -> None:
    by_set: dict[str, dict[int, Estimate]] = {}
    for row in rows:  # newest first: what was evaluated again counts as it was last
        if row.step is not None:
            by_set.setdefault(f"{row.set_name}, mean@{row.results['samples']}", {}).setdefault(
                row.step, row.results["mean"]
            )
    if max((len(steps) for steps in by_set.values()), default=0) < 2:
        return
    st.markdown("**mean@k by checkpoint**, with its 95% interval over prompts")
    st.echarts_chart(
        evaluation_chart.of_steps({name: list(steps.items()) for name, steps in by_set.items()}),
        height=260,
        key="evaluations-by-step",
        alt="; ".join(
            evaluation_rows.spoken({f"{name} at step {step}": one for step, one in sorted(steps.items())})
            for name, steps in by_set.items()
        ),
    )


def _one(row: EvaluationRow) -> None:
    results, samples = row.results, row.results["samples"]
    error = results["sampling_error"]
    drawn = "" if error is None else f" ± {100 * error:.1f} points from sampling alone."
    st.markdown(
        f"**{markdown(row.set_name, 80)}** at step {row.step}: {results['prompts']} prompts, {samples} samples "
        f"each.{drawn}"
    )
    passes = {f"pass@{k}": one for k, one in results["pass_at"].items() if k != "1"}
    left, right = st.columns(2, gap="medium")
    with left:
        _rows("whole", {f"mean@{samples}": results["mean"], **passes, f"maj@{samples}": results["majority"]})
    subsets = results.get("subsets") or {}
    with right:
        if subsets:
            _rows("subsets", {name: one["mean"] for name, one in subsets.items()})
    if subsets:
        table = evaluation_rows.by_subset(results)
        st.dataframe(
            pd.DataFrame(table), column_config=_formats(table), hide_index=True, alt=f"Table of {len(subsets)} subsets"
        )


def _rows(key: str, estimates: dict[str, Estimate]) -> None:
    st.echarts_chart(
        evaluation_chart.of_rows(estimates),
        height=evaluation_chart.height(len(estimates)),
        key=f"evaluation-{key}",
        alt=evaluation_rows.spoken(estimates),
    )


def _formats(table: dict[str, list[object]]) -> dict[str, object]:
    formats: dict[str, object] = {
        name: st.column_config.NumberColumn(format="%.1f%%") for name in table if name.startswith(_SHARES)
    }
    return formats | {"Tokens": st.column_config.NumberColumn(format="%.0f", help="Mean length of a response")}
