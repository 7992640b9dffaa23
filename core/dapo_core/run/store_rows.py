"""The rows of the metadata store. Times are Unix seconds; NaN and infinity are stored as a flag."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

from dapo_core.naming import samples_prefix
from dapo_core.run.entries import EventType, RunState

Flag = Literal["nan", "inf", "-inf"]
LARGEST: Final = 1e300
CheckpointState = Literal["uploading", "committed", "failed", "deleting", "deleted"]


def split_value(value: float) -> tuple[float | None, Flag | None]:
    """A number as it is stored, since databases treat NaN differently (SQLite: NULL; PostgreSQL: the maximum).

    One beyond `LARGEST` is stored as infinite: the sum of a bucket would overflow, at which PostgreSQL rejects all
    metrics of the step.
    """
    if abs(value) <= LARGEST:
        return value, None
    if math.isnan(value):
        return None, "nan"
    return None, "inf" if value > 0 else "-inf"


def finite_value(value: float | None, flag: Flag | None) -> tuple[float | None, Flag | None]:
    """A stored number as readers may rely on it: whoever may write rows may also have stored a plain NaN."""
    return (value, flag) if value is None or math.isfinite(value) else split_value(value)


def join_value(value: float | None, flag: str | None) -> float:
    """The inverse of `split_value`."""
    return float(flag) if flag else math.nan if value is None else value


@dataclass(frozen=True)
class RunRow:
    """The run of one DAPOJob. `spec` is the job, `config` verl's configuration (None until it is composed)."""

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

    @property
    def objects_url(self) -> str | None:
        """The URL of the object store that the job names (`checkpoints.uri`); None when it names none."""
        found: Any = self.spec
        for name in ("spec", "checkpoints", "uri"):  # who writes the row may write anything
            found = found.get(name) if isinstance(found, Mapping) else None
        return found if found and isinstance(found, str) else None


@dataclass(frozen=True)
class AttemptRow:
    """One attempt of a run. `step_from` is the step it resumed from, `step_to` the last one it finished."""

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
    """One value of one metric at one step of one attempt. A tuple, because a sender creates millions."""

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
    """Something that happened to a run. Two with the same `dedup_key` are the same event."""

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
    """The checkpoint of one step. `decision` says why it was kept, removed or not stored."""

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
    """Where the logged samples of one step are: a Parquet object of `rows` rows."""

    run_id: str
    step: int
    attempt: int
    key: str
    rows: int
    size_bytes: int
    ts: float

    @property
    def is_of_run(self) -> bool:
        """Whether the key is one of samples of the run: whoever may write rows of the run wrote it."""
        return self.key.startswith(samples_prefix(self.run_id)) and ".." not in self.key


@dataclass(frozen=True)
class EvaluationRow:
    """One evaluation on one set.

    `subject` is what was evaluated, `run_id` and `step` of which checkpoint it was (None for a plain model).
    `sampling` has samples, temperature, topP, limits, seed, dtype and reward; `results` the fields of
    `dapo_trainer.evaluate.statistics.Summary`, with those of subsets under `subsets`.
    """

    evaluation_id: str
    set_name: str
    subject: str
    run_id: str | None
    step: int | None
    created_at: float
    source: str
    sampling: Mapping[str, Any]
    results: Mapping[str, Any]


@dataclass(frozen=True)
class WriteBatch:
    """What one transaction of `MetadataWriter.write` writes, all for one run."""

    points: Sequence[Point] = ()
    events: Sequence[EventRow] = ()
    checkpoints: Sequence[CheckpointRow] = ()
    samples: Sequence[SamplesRow] = ()


@dataclass(frozen=True)
class Receipt:
    """Which records of a spool a batch has: those after number `after` up to `upto`; all before were delivered."""

    spool: str
    after: int
    upto: int


@dataclass(frozen=True)
class AlertRow:
    """A guard that holds since `first_seen`, at step `first_step`; `cleared_at` is None while it holds."""

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


@dataclass(frozen=True)
class Notice:
    """A message for a receiver: an alert was raised, or it has cleared. `made_at` is when that was first to be sent,
    `tries` how often it was tried, this time included."""

    run_id: str
    job: str
    namespace: str
    rule: str
    kind: Literal["raised", "cleared"]
    message: str
    action: str
    first_seen: float
    first_step: int | None
    cleared_at: float | None
    made_at: float
    tries: int = 1


class CurvePoint(NamedTuple):
    """One step of a curve. `value` is None if it was not finite; then `flag` says what it was. A tuple, as `Point`: a
    curve has one for each step of the run."""

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
    """`count` consecutive points of a curve, from `step_from` to `step_to`.

    `min`, `max` and `mean` are of the finite values, `last` is the value of the last step; each may be None.
    `flag` is set if any value is not finite: nan before inf before -inf.
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
class RunSummary:
    """A run, the last step of its newest attempt, and its last values."""

    run: RunRow
    attempts: int
    step: int | None
    values: Mapping[str, CurvePoint]


@dataclass(frozen=True)
class RunTableRow:
    """One row of a table of runs. `step` is of the newest attempt, `values` are the last ones by metric, and
    `updated_at` is the time of the newest of them."""

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
    """The progress of a run, for its supervisor.

    `step` and `step_at` are of the last step of the newest attempt, None before it; `attempt` is 0 before the first.
    `step_from` is the step from which the newest attempt resumed, None until it has. `namespace` is None for a run that
    is not on record. `validate_every` and
    `checkpoint_every` are steps between validations and between checkpoints, 0 for none.
    `history` has the requested curves, at their first and at their last steps (`guards.History`).
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
    namespace: str | None = None


@dataclass(frozen=True)
class RunMark:
    """Changes whenever a run reports something: its newest attempt with its steps and its end, when its newest value
    was written and of which step it is, and its newest checkpoint."""

    attempt: int = 0
    step_from: int | None = None
    step_to: int | None = None
    value_at: float | None = None
    last: int | None = None
    checkpoint: int | None = None
    checkpoint_at: float | None = None
    ended_at: float | None = None


@dataclass(frozen=True)
class CurvePart:
    """A part of a run's curves (`guards.History`), by step. `more`: it ends at the limit of what was asked for."""

    history: Mapping[str, Sequence[tuple[int, float | None, Flag | None]]]
    more: bool = False
