"""What is recorded of a run besides its curves: plain values. Pure.

Entries, which `dapo_core.db.recorder` writes, may be written again, which changes nothing: a supervisor or operator
that starts cannot know what the one before it could still write. Times are Unix seconds. Samples are rows of Parquet
files in the object store.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, Literal, Self

RunState = Literal["Created", "Running", "Restarting", "Suspended", "Stopped", "Succeeded", "Failed"]
# A run in one of these does not change by itself.
ENDED_STATES: Final = frozenset({"Succeeded", "Failed", "Stopped", "Suspended"})
EventType = Literal["Normal", "Warning"]


@dataclass(frozen=True)
class RunCreated:
    """The run, as its DAPOJob describes it."""

    name: str
    namespace: str
    spec: Mapping[str, Any]
    created_at: float
    total_steps: int | None


@dataclass(frozen=True)
class RunChanged:
    """The run's state. `ended_at` is None while it may go on."""

    state: RunState
    reason: str
    message: str
    started_at: float | None
    ended_at: float | None


@dataclass(frozen=True)
class AttemptStarted:
    """An attempt, before any of its processes. `from_step` is None where it is not known yet."""

    number: int
    started_at: float
    from_step: int | None = None


@dataclass(frozen=True)
class AttemptEnded:
    """How an attempt ended. `counted`: against maxRestarts; None when nothing follows."""

    number: int
    ended_at: float
    reason: str
    message: str
    exit_code: int | None
    counted: bool | None


@dataclass(frozen=True)
class EventOccurred:
    """An event. Two with the same content within a second are one."""

    at: float
    type: EventType
    reason: str
    message: str
    attempt: int | None = None
    step: int | None = None


@dataclass(frozen=True)
class AlertRaised:
    """A guard holds, since `since_step`."""

    rule: str
    at: float
    since_step: int
    message: str
    action: str


@dataclass(frozen=True)
class AlertCleared:
    """A guard no longer holds."""

    rule: str
    at: float


Entry = RunCreated | RunChanged | AttemptStarted | AttemptEnded | EventOccurred | AlertRaised | AlertCleared


@dataclass(frozen=True)
class Sample:
    """One response, a column for each field.

    `reward` is after shaping, `accuracy` from 0 to 1, `length` in tokens; `truncated`: it reached the length limit;
    `details`: what a custom reward reported besides the score, as a JSON object, empty for nothing.
    """

    prompt: str
    response: str
    ground_truth: str
    reward: float
    accuracy: float
    length: int
    truncated: bool
    details: str = ""

    @property
    def is_right(self) -> bool:
        """Whether the response counts as right."""
        return self.accuracy > 0.5

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> Self:
        """The sample of a row; columns that only a newer trainer writes are ignored. Raises TypeError for a row without
        one of ours."""
        known = {field.name for field in fields(cls)}
        return cls(**{name: value for name, value in row.items() if name in known})
