"""What goes into and comes out of the metadata store. Times are Unix seconds; a value of NaN or infinity is a flag."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from dapo_core.run.entries import EventType, RunState

Flag = Literal["nan", "inf", "-inf"]
CheckpointState = Literal["uploading", "committed", "failed", "deleting", "deleted"]


def split_value(value: float) -> tuple[float | None, Flag | None]:
    """How a number is stored: databases disagree about NaN (SQLite makes it NULL, Postgres' max() returns it)."""
    if math.isfinite(value):
        return value, None
    if math.isnan(value):
        return None, "nan"
    return None, "inf" if value > 0 else "-inf"


def join_value(value: float | None, flag: str | None) -> float:
    """The number that `split_value` took apart."""
    return float(flag) if flag else math.nan if value is None else value


@dataclass(frozen=True)
class RunRow:
    """One DAPOJob's run. `spec` is the job as given, `config` the composed configuration (None until composed)."""

    run_id: str
    name: str
    namespace: str = "default"
    spec: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] | None = None
    state: RunState = "Created"
    reason: str | None = None
    message: str | None = None
    created_at: float = 0.0
    started_at: float | None = None
    ended_at: float | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    total_steps: int | None = None
    owner: str | None = None


@dataclass(frozen=True)
class AttemptRow:
    """One life of a run's processes. `step_from` is the step it resumed from, `step_to` the last it finished."""

    run_id: str
    attempt: int
    started_at: float
    ended_at: float | None = None
    step_from: int | None = None
    step_to: int | None = None
    reason: str | None = None
    message: str | None = None
    exit_code: int | None = None
    counted: bool | None = None


class Point(NamedTuple):
    """One value of one metric at one step, as one attempt saw it. A tuple, since a sender makes millions of them."""

    metric: str
    step: int
    attempt: int
    ts: float
    value: float | None
    flag: Flag | None = None

    @classmethod
    def of(cls, metric: str, step: int, attempt: int, ts: float, value: float) -> "Point":
        """A point from a plain number, finite or not."""
        number, flag = split_value(value)
        return cls(metric, step, attempt, ts, number, flag)


@dataclass(frozen=True)
class EventRow:
    """Something that happened to a run. Two with one `dedup_key` are one."""

    run_id: str
    dedup_key: str
    ts: float
    type: EventType
    reason: str
    message: str
    attempt: int | None = None
    step: int | None = None


@dataclass(frozen=True)
class CheckpointRow:
    """What is known of the checkpoint of one step. `decision` says why it is kept or was given up."""

    run_id: str
    step: int
    attempt: int
    state: CheckpointState
    uri: str
    updated_at: float
    size_bytes: int | None = None
    files: int | None = None
    spec_digest: str | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    decision: str | None = None


@dataclass(frozen=True)
class SamplesRow:
    """Where the logged samples of one step lie: a Parquet object of `rows` rows."""

    run_id: str
    step: int
    attempt: int
    key: str
    rows: int
    size_bytes: int
    ts: float


@dataclass(frozen=True)
class Batch:
    """What one transaction of `MetadataWriter.write` holds, all of one run."""

    points: Sequence[Point] = ()
    events: Sequence[EventRow] = ()
    checkpoints: Sequence[CheckpointRow] = ()
    samples: Sequence[SamplesRow] = ()


@dataclass(frozen=True)
class Receipt:
    """Of a batch from a spool: it holds the records after number `after` up to `upto`, and all before it were
    delivered."""

    spool: str
    after: int
    upto: int


@dataclass(frozen=True)
class AlertRow:
    """A guard that held from `first_seen` on, at step `first_step`; `cleared_at` is None while it holds."""

    run_id: str
    rule: str
    first_seen: float
    last_seen: float
    message: str
    action: str
    first_step: int | None = None
    cleared_at: float | None = None
    acknowledged_by: str | None = None
    acknowledged_at: float | None = None


class CurvePoint(NamedTuple):
    """One step of a curve. `value` is None where it was not finite, and `flag` says how. A tuple, as `Point` is: a
    history has as many as the run has steps."""

    step: int
    attempt: int
    ts: float
    value: float | None
    flag: Flag | None

    @property
    def number(self) -> float:
        """The value, with NaN and infinities as such."""
        return join_value(self.value, self.flag)


@dataclass(frozen=True)
class Bucket:
    """Some neighbouring steps of a curve, from `step_from` to `step_to` (both have a point), `count` of them.

    `min`, `max` and `mean` are of the finite values, `last` is the value of the last step; each None without one.
    `flag` is set when any value is not finite: nan before inf before -inf.
    """

    step_from: int
    step_to: int
    min: float | None
    max: float | None
    mean: float | None
    last: float | None
    count: int
    flag: Flag | None


@dataclass(frozen=True)
class RunTableRow:
    """One line of a table of runs. `step` is the newest attempt's, `values` are the last ones by metric, and
    `updated_at` is when the newest of these was taken."""

    run_id: str
    name: str
    namespace: str
    state: RunState
    reason: str | None
    message: str | None
    created_at: float
    started_at: float | None
    ended_at: float | None
    total_steps: int | None
    owner: str | None
    tags: Mapping[str, str]
    attempts: int
    step: int | None
    updated_at: float | None
    alerts: int
    values: Mapping[str, CurvePoint]


@dataclass(frozen=True)
class RunProgress:
    """How far a run is, for whoever supervises it.

    `step` and `step_at` are of the newest attempt's last step, None before it; `attempt` is 0 before the first.
    `step_from` is the step the newest attempt resumed from, None until it has. `validate_every` and `checkpoint_every`
    are steps between validations and between checkpoints, 0 for none.
    `history` holds the curves that were asked for, at their first and at their last steps (`guards.History`).
    """

    run_id: str
    attempt: int
    step: int | None
    step_at: float | None
    values: Mapping[str, CurvePoint]
    checkpoint: CheckpointRow | None
    history: Mapping[str, Sequence[tuple[int, float | None, Flag | None]]]
    step_from: int | None = None
    total_steps: int | None = None
    validate_every: int = 0
    checkpoint_every: int = 0
