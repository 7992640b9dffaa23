"""Evaluations as `dapo show` prints them. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from dapo_core.db.evaluations import EvaluationRow
from dapo_core.run_words import moment


def evaluations_table(rows: Sequence[EvaluationRow]) -> Table:
    """One line a set, newest first; intervals are 95 % over prompts."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading in ("Evaluated", "step", "Set", "mean@k", "95% interval", "pass@k", "maj@k", "length", "cut off"):
        table.add_column(heading, justify="left" if heading[0].isupper() or "%" in heading else "right")
    table.add_column("Sampling", overflow="fold")
    for row in rows:
        found = row.results
        table.add_row(
            moment(row.created_at),
            "-" if row.step is None else str(row.step),
            row.set_name,
            _percent(found["mean"]["value"]),
            _interval(found["mean"]),
            _percent(found["pass_at"][str(found["samples"])]["value"]),
            _percent(found["majority"]["value"]),
            f"{found['lengths']['mean']:.1f}",
            _percent(found["truncated"]),
            _sampling(found["prompts"], row.sampling),
        )
    return table


def _percent(share: float) -> str:
    return f"{share:.1%}"


def _interval(estimate: Mapping[str, Any]) -> str:
    low, high = estimate["low"], estimate["high"]
    return "-" if low is None or high is None else f"{_percent(low)} to {_percent(high)}"


def _sampling(prompts: int, sampling: Mapping[str, Any]) -> str:
    drawn = f"{prompts} x {sampling['samples']}, temperature {sampling['temperature']:g}, top-p {sampling['topP']:g}"
    return f"{drawn}, at most {sampling['maxResponseTokens']:,} tokens"
