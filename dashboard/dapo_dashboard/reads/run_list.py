"""The table of runs: read in one query, with only what is new of what is slow to read; its rows, filters and order."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from dapo_core.db import ENDED_STATES, MetadataReader, RunState, RunTableRow
from dapo_core.run import metrics
from dapo_core.run.formatting import ago, duration
from dapo_core.run.metrics import HEADLINES, Headline
from dapo_core.run.progress import PACE_METRICS, PACE_STEPS, progress_of
from dapo_dashboard.escaping import shown
from dapo_dashboard.reads.cached_reader import CachedReader, Reading

SPARKLINE: Final = metrics.REWARD_GENERATED
MAX_RUNS: Final = 5_000
SPARKLINE_BUCKETS: Final = 32
# A curve in a cell is 32 points out of thousands of steps: it need not change every second.
SPARKLINE_SECONDS: Final = 15.0
# Nor need the time left of all runs.
LEFT_SECONDS: Final = 5.0
Values = Sequence[float | None]
SecondsLeft = Mapping[str, float]
"""By run, of those for which it is known."""
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


@dataclass(frozen=True)
class Sparklines:
    """By run; `until` is the time of the run's last step when its curve was read."""

    curves: Mapping[str, Values] = field(default_factory=dict)
    until: Mapping[str, float | None] = field(default_factory=dict)


def read_rows(reader: CachedReader) -> Reading[list[RunTableRow]]:
    """All runs of the database, newest first. Raises NothingReadError."""
    return reader.read(("runs",), lambda db, _: db.run_table(HEADLINES, limit=MAX_RUNS))


def read_accelerators(reader: CachedReader, rows: Sequence[RunTableRow]) -> Mapping[str, int]:
    """How many each run asks for; this does not change during a run. `rows` are those of all runs."""

    def load(db: MetadataReader, last: Mapping[str, int] | None) -> Mapping[str, int]:
        known = last or {}
        new = [row.run_id for row in rows if row.run_id not in known]
        return {**known, **db.gpus(new)} if new else known

    return reader.read(("gpus",), load).value


def read_seconds_left(reader: CachedReader, rows: Sequence[RunTableRow]) -> SecondsLeft:
    """The time left of the runs that have not ended, where it is known. `rows` are those of all runs."""
    alive = [row.run_id for row in rows if row.state not in ENDED_STATES]

    def load(db: MetadataReader, _: SecondsLeft | None) -> SecondsLeft:
        progress = db.progress(alive, history=PACE_METRICS, first_steps=0, last_steps=PACE_STEPS) if alive else {}
        left = {run_id: progress_of(run).eta_seconds for run_id, run in progress.items()}
        return {run_id: float(seconds) for run_id, seconds in left.items() if seconds is not None}

    return reader.read(("seconds left",), load, max_age=LEFT_SECONDS).value


def read_sparklines(reader: CachedReader, rows: Sequence[RunTableRow]) -> Mapping[str, Values]:
    """Curves of runs that ended are read once, and again if they were resumed; those of the others every
    SPARKLINE_SECONDS. `rows` are those of all runs."""
    ended = [row for row in rows if row.state in ENDED_STATES]
    alive = [row.run_id for row in rows if row.state not in ENDED_STATES]

    def load(db: MetadataReader, last: Sparklines | None) -> Sparklines:
        known = last or Sparklines()
        new = [row for row in ended if known.until.get(row.run_id, -1.0) != row.updated_at]
        if not new:
            return known
        read = db.sparklines([row.run_id for row in new], SPARKLINE, SPARKLINE_BUCKETS)
        return Sparklines({**known.curves, **read}, {**known.until, **{row.run_id: row.updated_at for row in new}})

    old = reader.read(("sparklines", "ended"), load).value.curves
    new = reader.read(
        ("sparklines", "alive"),
        lambda db, _: db.sparklines(alive, SPARKLINE, SPARKLINE_BUCKETS) if alive else {},
        max_age=SPARKLINE_SECONDS,
    )
    return {**old, **new.value}


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

    def keep(self, row: RunTableRow) -> bool:
        """Whether the run passes all filters; each word of the search must occur in its ID, job, owner, namespace or
        tags."""
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
    """`name=value` of each, sorted by name."""
    return [f"{name}={value}" for name, value in sorted(row.tags.items())]


ORDERS: Final[Mapping[str, Callable[[RunTableRow, SecondsLeft], Any]]] = {
    "newest first": lambda row, _: -row.created_at,
    "needs attention": lambda row, _: (-row.alerts, row.state != "Failed", row.state in ENDED_STATES, -row.created_at),
    "name": lambda row, _: row.run_id,
    "reward, highest first": lambda row, _: _descending(last(row, Headline.REWARD)),
    "accuracy, highest first": lambda row, _: _descending(last(row, Headline.ACCURACY)),
    "time left": lambda row, left: _ascending(left.get(row.run_id)),
    "last step, longest ago": lambda row, _: row.updated_at or 0.0,
}


def _descending(value: float | None) -> tuple[bool, float]:
    return value is None, -(value or 0.0)


def _ascending(value: float | None) -> tuple[bool, float]:
    return value is None, value or 0.0


def selected(rows: Iterable[RunTableRow], filters: Filters, order: str, left: SecondsLeft) -> list[RunTableRow]:
    """The runs that pass the filters, in that order; newest first if there is no such order."""
    key = ORDERS.get(order, ORDERS["newest first"])
    return sorted(filter(filters.keep, rows), key=lambda row: key(row, left))


def columns(
    rows: Sequence[RunTableRow],
    sparklines: Mapping[str, Sequence[float | None]],
    accelerators: Mapping[str, int],
    left: SecondsLeft,
    now: float,
) -> dict[str, list[Any]]:
    """The table by column; `now` is in Unix seconds."""
    return {
        "Run": [shown(row.run_id, 128) for row in rows],
        "State": [state_label(row.state) for row in rows],
        "Alerts": [row.alerts or None for row in rows],
        "Done": [_share(row) for row in rows],
        "Step": [f"{'-' if row.step is None else row.step}/{row.total_steps or '?'}" for row in rows],
        "Reward curve": [[value for value in sparklines.get(row.run_id, ()) if value is not None] for row in rows],
        "Reward": [last(row, Headline.REWARD) for row in rows],
        "Accuracy": [_percent(last(row, Headline.ACCURACY)) for row in rows],
        "Entropy": [last(row, Headline.ENTROPY) for row in rows],
        "Length": [last(row, Headline.LENGTH) for row in rows],
        "Time left": [duration(left[row.run_id]) if row.run_id in left else "" for row in rows],
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
