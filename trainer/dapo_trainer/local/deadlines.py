"""When an attempt has taken too long. Pure: seconds of one monotonic clock go in, a verdict comes out."""

from dataclasses import dataclass, replace
from typing import Literal

from dapo_core.jobspec import RunPolicy

OverdueReason = Literal["StartTimeout", "Stalled", "DeadlineExceeded"]


@dataclass(frozen=True)
class Overdue:
    """Why an attempt is to be ended, as a reason for the failure policy and a sentence for people."""

    reason: OverdueReason
    message: str


@dataclass(frozen=True)
class Pulse:
    """When an attempt last got further. All times are seconds of the same monotonic clock."""

    attempt_started: float
    ready_at: float | None = None
    step: int | None = None
    step_at: float | None = None

    def beat(self, *, starting: bool, step: int | None, now: float) -> "Pulse":
        """The pulse after a look at the attempt: whether it still starts, and its last finished step."""
        pulse = self if starting or self.ready_at is not None else replace(self, ready_at=now)
        if step is not None and (pulse.step is None or step > pulse.step):
            pulse = replace(pulse, step=step, step_at=now, ready_at=pulse.ready_at if pulse.ready_at else now)
        return pulse


def overdue(policy: RunPolicy, pulse: Pulse, run_started: float, now: float) -> Overdue | None:
    """Which limit of `policy` has passed, or None. The active deadline counts from `run_started`."""
    limit = policy.active_deadline_seconds
    if limit is not None and now - run_started >= limit:
        return Overdue("DeadlineExceeded", f"The run took longer than activeDeadlineSeconds ({limit} s).")
    if pulse.ready_at is None:
        limit = policy.start_timeout_seconds
        if now - pulse.attempt_started >= limit:
            return Overdue("StartTimeout", f"The trainer was not ready within startTimeoutSeconds ({limit} s).")
        return None
    limit = policy.stall_timeout_seconds
    if now - max(pulse.ready_at, pulse.step_at or 0.0) >= limit:
        after = "before its first step" if pulse.step is None else f"after step {pulse.step}"
        return Overdue("Stalled", f"No step was finished for stallTimeoutSeconds ({limit} s) {after}.")
    return None
