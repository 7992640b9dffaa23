"""When a run, or an attempt of it, has taken too long. Pure: times go in, deadlines come out, all of one clock."""

from dataclasses import dataclass, replace

from dapo_core.jobspec import RunPolicy
from dapo_core.run.reasons import Reason


@dataclass(frozen=True)
class Deadline:
    """A limit of the run policy: when it passes (seconds), and what ends the attempt then."""

    at: float
    reason: Reason
    message: str


def active_deadline(policy: RunPolicy, run_started: float | None) -> Deadline | None:
    """The run's own deadline; None where the policy has none or nothing has started."""
    limit = policy.active_deadline_seconds
    if limit is None or run_started is None:
        return None
    message = f"The run took longer than activeDeadlineSeconds ({limit} s)."
    return Deadline(run_started + limit, Reason.DEADLINE_EXCEEDED, message)


def start_deadline(policy: RunPolicy, since: float, what: str = "The trainer was not ready") -> Deadline:
    """When an attempt that started at `since` has to be ready; `what` begins the sentence."""
    limit = policy.start_timeout_seconds
    return Deadline(since + limit, Reason.START_TIMEOUT, f"{what} within startTimeoutSeconds ({limit} s).")


def stall_deadline(policy: RunPolicy, since: float, step: int | None) -> Deadline:
    """When the step after `step` has to be finished, given that nothing has been since `since`."""
    limit = policy.stall_timeout_seconds
    after = "before the first step" if not step else f"after step {step}"
    message = f"No step was finished within stallTimeoutSeconds ({limit} s) {after}."
    return Deadline(since + limit, Reason.STALLED, message)


@dataclass(frozen=True)
class Milestones:
    """When an attempt last got further."""

    attempt_started: float
    ready_at: float | None = None
    step: int | None = None
    step_at: float | None = None

    def at(self, now: float, *, starting: bool, step: int | None) -> "Milestones":
        """The milestones with what is seen now: whether the attempt is still starting, and its last finished step."""
        seen = self if starting or self.ready_at is not None else replace(self, ready_at=now)
        if step is not None and (seen.step is None or step > seen.step):
            seen = replace(seen, step=step, step_at=now, ready_at=seen.ready_at if seen.ready_at is not None else now)
        return seen


def overdue(policy: RunPolicy, milestones: Milestones, run_started: float, now: float) -> Deadline | None:
    """The deadline that has passed, if any; the run's own comes first."""
    if milestones.ready_at is None:
        own = start_deadline(policy, milestones.attempt_started)
    else:
        own = stall_deadline(policy, max(milestones.ready_at, milestones.step_at or 0.0), milestones.step)
    due = (active_deadline(policy, run_started), own)
    return next((deadline for deadline in due if deadline is not None and now >= deadline.at), None)
