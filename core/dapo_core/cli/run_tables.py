"""The table of `dapo runs`. Pure."""

from collections.abc import Mapping, Sequence
from typing import Final

from rich.table import Table
from rich.text import Text

from dapo_core.db import CurvePoint, RunSummary
from dapo_core.run.formatting import ago, number, percent
from dapo_core.run.metrics import Headline, in_percent

_HEADLINES: Final = (Headline.REWARD, Headline.ACCURACY, Headline.LENGTH)


def runs_table(summaries: Sequence[RunSummary], now: float) -> Table:
    """One line a run, newest first. `Reported` is the age of its last metrics: a run whose machine died still says
    Running."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("Run", no_wrap=True)
    table.add_column("State")
    for heading in ("Step", "Attempts", *(headline.title for headline in _HEADLINES), "Created", "Reported"):
        table.add_column(heading, justify="right", no_wrap=True)
    for summary in summaries:
        run, values = summary.run, summary.values
        newest = max((point.ts for point in values.values()), default=None)
        table.add_row(
            run.run_id,
            Text(run.state, state_style(run.state)),
            steps_text(summary.step, run.total_steps),
            str(summary.attempts),
            *(_last(values, headline) for headline in _HEADLINES),
            ago(run.created_at, now),
            ago(newest, now),
        )
    return table


def steps_text(step: int | None, total: int | None) -> str:
    """`12/60`, as far as it is known."""
    return "-" if step is None else f"{step}/{total}" if total else str(step)


def value_text(metric: str, value: float | None) -> str:
    """A value of `metric`: shares and probabilities in percent."""
    return percent(value) if in_percent(metric) else number(value)


def _last(values: Mapping[str, CurvePoint], headline: Headline) -> str:
    point = headline.of(values)
    return value_text(headline.metric(values), None if point is None else point.number)


def state_style(state: str) -> str:
    """Rich style of a run's or checkpoint's state."""
    return {
        "Running": "cyan",
        "Succeeded": "green",
        "committed": "green",
        "Failed": "red",
        "failed": "red",
        "Suspended": "yellow",
        "Stopped": "yellow",
        "Restarting": "yellow",
    }.get(state, "dim")
