"""The table of runs: its rows, filters and order. Pure."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from dapo_core.db import ENDED_STATES, RunTableRow
from dapo_core.run import metrics
from dapo_core.run.formatting import ago
from dapo_core.run.metrics import HEADLINES, Headline
from dapo_dashboard import words
from dapo_dashboard.plain import shown

METRICS: Final = HEADLINES
SPARKLINE: Final = metrics.REWARD_GENERATED


@dataclass(frozen=True)
class Filters:
    """What the reader wants to see; empty lists leave everything."""

    search: str = ""
    states: Sequence[str] = ()
    namespaces: Sequence[str] = ()
    tags: Sequence[str] = ()
    with_alerts: bool = False

    def keep(self, row: RunTableRow) -> bool:
        """Every word of the search is in the run's name, job, owner, namespace or tags."""
        tags = tags_of(row)
        text = " ".join((row.run_id, row.name, row.owner or "", row.namespace, *tags)).lower()
        return (
            all(word in text for word in self.search.lower().split())
            and (not self.states or row.state in self.states)
            and (not self.namespaces or row.namespace in self.namespaces)
            and set(self.tags) <= set(tags)
            and (not self.with_alerts or row.alerts > 0)
        )


def tags_of(row: RunTableRow) -> list[str]:
    """`name=value`, by name."""
    return [f"{name}={value}" for name, value in sorted(row.tags.items())]


Left = Mapping[str, float]
"""Seconds left by run, of those for which they are known."""

ORDERS: Final[Mapping[str, Callable[[RunTableRow, Left], Any]]] = {
    "newest first": lambda row, _: -row.created_at,
    "needs attention": lambda row, _: (-row.alerts, row.state != "Failed", row.state in ENDED_STATES, -row.created_at),
    "name": lambda row, _: row.run_id,
    "reward, highest first": lambda row, _: _falling(words.last(row.values, Headline.REWARD)),
    "accuracy, highest first": lambda row, _: _falling(words.last(row.values, Headline.ACCURACY)),
    "time left": lambda row, left: _rising(left.get(row.run_id)),
    "last step, longest ago": lambda row, _: row.updated_at or 0.0,
}


def _falling(value: float | None) -> tuple[bool, float]:
    return value is None, -(value or 0.0)


def _rising(value: float | None) -> tuple[bool, float]:
    return value is None, value or 0.0


def selected(rows: Iterable[RunTableRow], filters: Filters, order: str, left: Left) -> list[RunTableRow]:
    """Those that the filters keep, in that order."""
    key = ORDERS.get(order, ORDERS["newest first"])
    return sorted(filter(filters.keep, rows), key=lambda row: key(row, left))


def columns(
    rows: Sequence[RunTableRow],
    sparklines: Mapping[str, Sequence[float | None]],
    accelerators: Mapping[str, int],
    left: Left,
    now: float,
) -> dict[str, list[Any]]:
    """The table by column."""
    return {
        "Run": [shown(row.run_id, 128) for row in rows],
        "State": [words.state(row.state) for row in rows],
        "Alerts": [row.alerts or None for row in rows],
        "Done": [_share(row) for row in rows],
        "Step": [f"{'-' if row.step is None else row.step}/{row.total_steps or '?'}" for row in rows],
        "Reward curve": [[value for value in sparklines.get(row.run_id, ()) if value is not None] for row in rows],
        "Reward": [words.last(row.values, Headline.REWARD) for row in rows],
        "Accuracy": [_percent(words.last(row.values, Headline.ACCURACY)) for row in rows],
        "Entropy": [words.last(row.values, Headline.ENTROPY) for row in rows],
        "Length": [words.last(row.values, Headline.LENGTH) for row in rows],
        "Time left": [words.left(left.get(row.run_id)) for row in rows],
        "Last step": [ago(row.updated_at, now) for row in rows],
        "Restarts": [max(0, row.attempts - 1) for row in rows],
        "GPUs": [accelerators.get(row.run_id) for row in rows],
        "Namespace": [row.namespace for row in rows],
        "Owner": [shown(row.owner or "", 80) for row in rows],
        "Tags": [[shown(tag, 60) for tag in tags_of(row)] for row in rows],
    }


def _share(row: RunTableRow) -> float | None:
    return None if row.step is None or not row.total_steps else min(100.0, 100 * row.step / row.total_steps)


def _percent(value: float | None) -> float | None:
    return None if value is None else 100 * value
