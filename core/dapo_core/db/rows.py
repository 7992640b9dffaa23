"""What goes into and comes out of the metadata store. Times are Unix seconds; a value of NaN or infinity is a flag."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

Flag = Literal["nan", "inf", "-inf"]
CheckpointState = Literal["uploading", "committed", "failed", "deleting", "deleted"]
EventType = Literal["Normal", "Warning"]
# A run that is in one of these will not change by itself.
ENDED_STATES: Final = frozenset({"Succeeded", "Failed", "Stopped", "Suspended"})
RunState = Literal["Created", "Running", "Restarting", "Suspended", "Stopped", "Succeeded", "Failed"]


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


@dataclass(frozen=True)
class Point:
    """One value of one metric at one step, as one attempt saw it."""

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
