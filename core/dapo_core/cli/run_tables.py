"""The table of `dapo runs`. Pure."""

from collections.abc import Mapping, Sequence
from typing import Final

from rich.table import Table
from rich.text import Text

from dapo_core.db import CurvePoint, RunSummary
from dapo_core.run import metrics
from dapo_core.run.formatting import ago, number, state_style

REWARD: Final = (metrics.REWARD_GENERATED, metrics.REWARD_TRAINED)
ACCURACY: Final = (metrics.ACCURACY_GENERATED, metrics.ACCURACY_TRAINED)
LENGTH: Final = (metrics.LENGTH_MEAN,)
ENTROPY: Final = (metrics.ENTROPY,)
SUMMARY_METRICS: Final = (*REWARD, *ACCURACY, *LENGTH, *ENTROPY)


def runs_table(summaries: Sequence[RunSummary], now: float) -> Table:
    """One line a run, newest first. `News` is the age of its last metrics: a run whose machine died still says
    Running."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("Run", no_wrap=True)
    table.add_column("State")
    for heading in ("Step", "Attempts", "Reward", "Accuracy", "Length", "Created", "News"):
        table.add_column(heading, justify="right", no_wrap=True)
    for summary in summaries:
        run, values = summary.run, summary.values
        newest = max((point.ts for point in values.values()), default=None)
        table.add_row(
            run.run_id,
            Text(run.state, state_style(run.state)),
            progress(summary.step, run.total_steps),
            str(summary.attempts),
            *(number(last(values, names)) for names in (REWARD, ACCURACY, LENGTH)),
            ago(run.created_at, now),
            ago(newest, now),
        )
    return table


def progress(step: int | None, total: int | None) -> str:
    """`12/60`, as far as it is known."""
    return "-" if step is None else f"{step}/{total}" if total else str(step)


def last(values: Mapping[str, CurvePoint], names: Sequence[str]) -> float | None:
    """The last value of the first of `names` that the run has."""
    return next((values[name].number for name in names if name in values), None)
