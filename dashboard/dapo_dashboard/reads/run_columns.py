"""The table of runs: which are shown, in which order, and their columns. Pure."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from dapo_core.db import ENDED_STATES, RunState, RunTableRow
from dapo_core.run.annotations import NONE, RunAnnotations
from dapo_core.run.formatting import duration
from dapo_core.run.metrics import Headline
from dapo_core.run.validations import ValidationResult
from dapo_dashboard.escaping import shown
from dapo_dashboard.reads.run_list import Beside

# A symbol besides the color: color is not the only difference.
STATE_ICONS: Final[Mapping[RunState, str]] = {
    "Created": "○",
    "Running": "▶",
    "Restarting": "↻",
    "Suspended": "‖",
    "Stopped": "■",
    "Succeeded": "✓",
    "Failed": "✗",
}
STATE_COLORS: Final[Mapping[str, str]] = {
    "Running": "blue",
    "Succeeded": "green",
    "Failed": "red",
    "Restarting": "orange",
    "Suspended": "violet",
}


def state_label(state: str) -> str:
    """`▶ Running`."""
    return f"{STATE_ICONS.get(state, '·')} {state}"  # type: ignore[call-overload]


def last(row: RunTableRow, headline: Headline) -> float | None:
    """The run's last value of the headline; None if it has none or the last one is not finite."""
    point = headline.of(row.values)
    return None if point is None else point.value


@dataclass(frozen=True)
class Filters:
    """Which runs to show; an empty list means no restriction."""

    search: str = ""
    states: Sequence[str] = ()
    namespaces: Sequence[str] = ()
    tags: Sequence[str] = ()
    with_alerts: bool = False
    starred_by: str | None = None
    with_archived: bool = False

    def keep(self, row: RunTableRow, said: RunAnnotations = NONE) -> bool:
        """Whether the run, of which people say `said`, passes all filters; each word of the search must occur in its
        ID, job, owner, namespace, tags or note."""
        tags = tags_of(row, said)
        text = " ".join((row.run_id, row.name, row.owner or "", row.namespace, said.note, *tags)).lower()
        return (
            all(word in text for word in self.search.lower().split())
            and (not self.states or row.state in self.states)
            and (not self.namespaces or row.namespace in self.namespaces)
            and set(self.tags) <= set(tags)
            and (not self.with_alerts or row.alerts > 0)
            and (self.starred_by is None or self.starred_by in said.stars)
            and (self.with_archived or said.archived_by is None)
        )


def tags_of(row: RunTableRow, said: RunAnnotations = NONE) -> list[str]:
    """`name=value` of each that the job has, sorted by name, then those that people gave."""
    return [*(f"{name}={value}" for name, value in sorted(row.tags.items())), *said.tags]


ORDERS: Final[Mapping[str, Callable[[RunTableRow, Beside], Any]]] = {
    "newest first": lambda row, _: -row.created_at,
    "needs attention": lambda row, _: (-row.alerts, row.state != "Failed", row.state in ENDED_STATES, -row.created_at),
    "name": lambda row, _: row.run_id,
    "validation, best first": lambda row, more: _descending(_best(more.results.get(row.run_id))),
    "reward, highest first": lambda row, _: _descending(last(row, Headline.REWARD)),
    "time left": lambda row, more: _ascending(more.left.get(row.run_id)),
    "last step, longest ago": lambda row, _: row.updated_at or 0.0,
}


def _best(result: ValidationResult | None) -> float | None:
    return None if result is None else result.best


def _descending(value: float | None) -> tuple[bool, float]:
    return value is None, -(value or 0.0)


def _ascending(value: float | None) -> tuple[bool, float]:
    return value is None, value or 0.0


def selected(rows: Iterable[RunTableRow], filters: Filters, order: str, beside: Beside) -> list[RunTableRow]:
    """The runs that pass the filters, in that order; newest first if there is no such order."""
    key = ORDERS.get(order, ORDERS["newest first"])
    kept = (row for row in rows if filters.keep(row, beside.said.get(row.run_id, NONE)))
    return sorted(kept, key=lambda row: key(row, beside))


def columns(rows: Sequence[RunTableRow], beside: Beside, viewer: str = "") -> dict[str, list[Any]]:
    """The table by column, with the stars of the viewer. Nothing in it depends on the time of day: what has not changed
    is not sent again."""
    said = [beside.said.get(row.run_id, NONE) for row in rows]
    left, results = beside.left, [beside.results.get(row.run_id) for row in rows]
    return {
        "Run": [shown(row.run_id, 128) for row in rows],
        "★": ["★" if viewer in each.stars else "" for each in said],
        "State": [state_label(row.state) for row in rows],
        "Alerts": [row.alerts or None for row in rows],
        "Validation": [result and 100 * result.last for result in results],
        "Best": [result and 100 * result.best for result in results],
        "Best at step": [result and result.best_step for result in results],
        "Done": [_share(row) for row in rows],
        "Step": [f"{'-' if row.step is None else row.step}/{row.total_steps or '?'}" for row in rows],
        "Reward curve": [
            [value for value in beside.sparklines.get(row.run_id, ()) if value is not None] for row in rows
        ],
        "Reward": [last(row, Headline.REWARD) for row in rows],
        "Training accuracy": [_percent(last(row, Headline.ACCURACY)) for row in rows],
        "Entropy": [last(row, Headline.ENTROPY) for row in rows],
        "Length": [last(row, Headline.LENGTH) for row in rows],
        "Time left": [duration(left[row.run_id]) if row.run_id in left else "" for row in rows],
        "Last step": [row.updated_at and datetime.fromtimestamp(row.updated_at) for row in rows],
        "Restarts": [max(0, row.attempts - 1) for row in rows],
        "GPUs": [beside.accelerators.get(row.run_id) for row in rows],
        "Namespace": [row.namespace for row in rows],
        "Owner": [shown(row.owner or "", 80) for row in rows],
        "Tags": [[shown(tag, 60) for tag in tags_of(row, each)] for row, each in zip(rows, said, strict=True)],
        "Note": [shown(each.note, 200) for each in said],
    }


def _share(row: RunTableRow) -> float | None:
    return None if row.step is None or not row.total_steps else min(100.0, 100 * row.step / row.total_steps)


def _percent(value: float | None) -> float | None:
    return None if value is None else 100 * value
