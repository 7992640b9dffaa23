"""What the operator records of a run, from one status to the next. Pure.

Each may be written again: an operator that starts records what it finds once more, since it can not know whether the
one before it could.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from dapo_core.run.status import Attempt, DAPOJobStatus
from dapo_operator.jobs.actions import Event
from dapo_operator.jobs.job import Job
from dapo_operator.kube.clock import seconds

State = Literal["Created", "Running", "Restarting", "Suspended", "Stopped", "Succeeded", "Failed"]


@dataclass(frozen=True)
class RunCreated:
    """The run, as its DAPOJob describes it."""

    name: str
    namespace: str
    spec: Mapping[str, Any]
    created_at: float
    total_steps: int | None


@dataclass(frozen=True)
class RunState:
    """How the run is. `ended_at` is None while it may go on."""

    state: State
    reason: str
    message: str
    started_at: float | None
    ended_at: float | None


@dataclass(frozen=True)
class AttemptStarted:
    """An attempt, before any of its pods."""

    number: int
    started_at: float
    from_step: int | None


@dataclass(frozen=True)
class AttemptEnded:
    """How an attempt ended."""

    number: int
    ended_at: float
    reason: str
    message: str
    exit_code: int | None
    counted: bool | None


@dataclass(frozen=True)
class EventTold:
    """A line of the run's story."""

    at: float
    event: Event
    attempt: int | None


@dataclass(frozen=True)
class AlertRaised:
    """A guard holds."""

    rule: str
    at: float
    since_step: int
    message: str
    action: str


@dataclass(frozen=True)
class AlertCleared:
    """It does not hold any more."""

    rule: str
    at: float


Record = RunCreated | RunState | AttemptStarted | AttemptEnded | EventTold | AlertRaised | AlertCleared

_STATES: Final[dict[str, State]] = {
    "Restarting": "Restarting",
    "Suspended": "Suspended",
    "Succeeded": "Succeeded",
    "Failed": "Failed",
    "Deleting": "Stopped",
}


def changes(
    job: Job, old: DAPOJobStatus | None, new: DAPOJobStatus, events: Sequence[Event], now: float
) -> list[Record]:
    """What is to be recorded when `new` takes the place of `old` (None: nothing is known to be recorded)."""
    if job.job is None and not new.attempts:
        return []
    records: list[Record] = []
    if old is None and job.job is not None:
        spec = job.job.model_dump(mode="json", by_alias=True, exclude_none=True)
        records.append(RunCreated(job.name, job.namespace, spec, job.created_at, job.job.spec.schedule.steps))
    before = {attempt.number: attempt for attempt in old.attempts} if old is not None else {}
    for attempt in new.attempts:
        records += _attempt_changes(before.get(attempt.number), attempt)
    if old is None or _state(old) != _state(new):
        records.append(_state(new, now))
    number = new.attempts[-1].number if new.attempts else None
    return [*records, *(EventTold(now, event, number) for event in events)]


def _attempt_changes(old: Attempt | None, new: Attempt) -> list[Record]:
    found: list[Record] = []
    if old is None:
        found.append(AttemptStarted(new.number, seconds(new.started_at) or 0.0, new.from_step))
    if new.ended_at is not None and (old is None or old.ended_at is None):
        ended = seconds(new.ended_at) or 0.0
        found.append(AttemptEnded(new.number, ended, new.reason or "", new.message or "", new.exit_code, new.counted))
    return found


def _state(status: DAPOJobStatus, now: float | None = None) -> RunState:
    phase = status.phase or "Pending"
    state = _STATES.get(phase, "Running" if status.attempts else "Created")
    last = status.attempts[-1] if status.attempts else None
    condition = next((each for each in status.conditions if each.type == phase and each.status == "True"), None)
    reason = condition.reason if condition else (last.reason if last else None) or phase
    message = condition.message if condition else (last.message if last else None) or ""
    ended = now if state in ("Suspended", "Stopped", "Succeeded", "Failed") else None
    return RunState(state, reason, message, seconds(status.started_at), ended)
