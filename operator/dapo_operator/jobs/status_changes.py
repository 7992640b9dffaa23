"""What the operator records of a run, from one status to the next. Pure."""

from collections.abc import Sequence
from typing import Final

from dapo_core.run.entries import (
    ENDED_STATES,
    AttemptEnded,
    AttemptStarted,
    Entry,
    EventOccurred,
    RunChanged,
    RunCreated,
    RunState,
)
from dapo_core.run.status import Attempt, DAPOJobStatus
from dapo_operator.jobs.actions import Event
from dapo_operator.jobs.dapojob import Job
from dapo_operator.kube.objects import unix_seconds

_STATES: Final[dict[str, RunState]] = {
    "Restarting": "Restarting",
    "Suspended": "Suspended",
    "Succeeded": "Succeeded",
    "Failed": "Failed",
    "Deleting": "Stopped",
}


def changes(
    job: Job, old: DAPOJobStatus | None, new: DAPOJobStatus, events: Sequence[Event], now: float
) -> list[Entry]:
    """What to record when `new` replaces `old` (None: nothing is known to be recorded, so everything is)."""
    if job.parsed is None and not new.attempts:
        return []
    entries: list[Entry] = []
    if old is None and job.parsed is not None:
        spec = job.parsed.model_dump(mode="json", by_alias=True, exclude_none=True)
        entries.append(RunCreated(job.name, job.namespace, spec, job.created_at, job.parsed.spec.schedule.steps))
    before = {attempt.number: attempt for attempt in old.attempts} if old is not None else {}
    for attempt in new.attempts:
        entries += _attempt_changes(before.get(attempt.number), attempt)
    if old is None or _state(old) != _state(new):
        entries.append(_state(new, now))
    number = new.attempts[-1].number if new.attempts else None
    return [*entries, *(EventOccurred(now, event.type, event.reason, event.message, number) for event in events)]


def _attempt_changes(old: Attempt | None, new: Attempt) -> list[Entry]:
    entries: list[Entry] = []
    if old is None:
        entries.append(AttemptStarted(new.number, unix_seconds(new.started_at) or 0.0, new.from_step))
    if new.ended_at is not None and (old is None or old.ended_at is None):
        ended = unix_seconds(new.ended_at) or 0.0
        entries.append(AttemptEnded(new.number, ended, new.reason or "", new.message or "", new.exit_code, new.counted))
    return entries


def _state(status: DAPOJobStatus, now: float | None = None) -> RunChanged:
    phase = status.phase or "Pending"
    state = _STATES.get(phase, "Running" if status.attempts else "Created")
    last = status.attempts[-1] if status.attempts else None
    condition = next((c for c in status.conditions if c.type == phase and c.status == "True"), None)
    reason = condition.reason if condition else (last.reason if last else None) or phase
    message = condition.message if condition else (last.message if last else None) or ""
    ended = now if state in ENDED_STATES else None
    return RunChanged(state, reason, message, unix_seconds(status.started_at), ended)
