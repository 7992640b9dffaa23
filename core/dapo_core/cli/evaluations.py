"""Evaluations as `dapo show` prints them. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group
from rich.text import Text

from dapo_core.db.evaluations import EvaluationRow
from dapo_core.run.formatting import moment, percent


def evaluations_list(rows: Sequence[EvaluationRow]) -> Group:
    """Two lines a set, newest first: what came out, and how it was sampled. Intervals are 95 % over prompts."""
    return Group(*(line for row in rows for line in (_found(row), _sampled(row))))


def _found(row: EvaluationRow) -> Text:
    results = row.results
    k = results["samples"]
    mean, passed, majority = results["mean"], results["pass_at"][str(k)], results["majority"]
    where = "" if row.step is None else f"  step {row.step}"
    return Text.assemble(
        (moment(row.created_at), "dim"),
        f"{where}  ",
        (row.set_name, "bold"),
        f"  mean@{k} {percent(mean['value'])}{_interval(mean)}"
        f"  pass@{k} {percent(passed['value'])}  maj@{k} {percent(majority['value'])}",
    )


def _sampled(row: EvaluationRow) -> Text:
    results, sampling = row.results, row.sampling
    drawn = f"{results['prompts']} x {results['samples']}"
    how = f"temperature {sampling['temperature']:g}, top-p {sampling['topP']:g}"
    length = f"{results['lengths']['mean']:.1f} of at most {sampling['maxResponseTokens']:,} tokens"
    return Text(f"    {drawn}, {how}; {length}, {percent(results['truncated'])} cut off", "dim")


def _interval(estimate: Mapping[str, Any]) -> str:
    low, high = estimate["low"], estimate["high"]
    return "" if low is None or high is None else f" ({percent(low)} to {percent(high)})"
