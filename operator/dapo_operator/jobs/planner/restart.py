"""What follows an attempt whose pods are gone: success, failure, suspension or a restart."""

import hashlib
from typing import Final

from dapo_core.naming import ROLES
from dapo_core.run.failure_policy import Decision, Failure, History, advanced, decide, failure_of, fruitless
from dapo_core.run.reasons import ExitCode, Reason
from dapo_core.run.status import Attempt
from dapo_operator.jobs.planner.admission import hold
from dapo_operator.jobs.planner.draft import Draft
from dapo_operator.jobs.planner.start import start
from dapo_operator.jobs.planner.timeouts import active_seconds
from dapo_operator.kube.objects import age, timestamp

# The reason of condition Suspended, by the exit code that suspends a job.
_SUSPENDING: Final[dict[int, str]] = {
    ExitCode.SAMPLING_EXHAUSTED: Reason.SUSPENDED_BY_SAMPLING,
    ExitCode.GUARD: Reason.SUSPENDED_BY_GUARD,
}


def decision_on(draft: Draft, attempt: Attempt) -> Decision:
    """What follows this attempt, from what is known so far about its end."""
    earlier = [(before.from_step, before.to_step) for before in draft.status.attempts[:-1]]
    reached = draft.reached(attempt)
    history = History(
        counted=draft.status.restarts_counted or 0,
        fruitless=fruitless(earlier),
        started_at=draft.now - active_seconds(draft),
        advanced=advanced([*earlier, (attempt.from_step, reached)]),
        uncounted={} if reached is not None else draft.status.restarts_uncounted or {},
    )
    return decide(draft.policy, _failure(draft, attempt), history, draft.now)


def _failure(draft: Draft, attempt: Attempt) -> Failure:
    spec = draft.job.spec if draft.job.parsed else None
    reason, message = attempt.reason or "", attempt.message or ""
    role = next((role for role in ROLES if role == attempt.role), None)
    if spec is None:
        return Failure(attempt.exit_code, reason, message, role)
    return failure_of(spec, attempt.exit_code, reason, message, role)


def conclude(draft: Draft, attempt: Attempt, trainers_stay: bool = False) -> None:
    """Record the attempt's end, and carry out the decision on it."""
    decision = decision_on(draft, attempt)
    draft.change(active_seconds=int(active_seconds(draft)))
    draft.change_attempt(
        ended_at=timestamp(draft.now),
        to_step=draft.reached(attempt),
        counted=decision.counted,
        trainers_stay=trainers_stay or None,
    )
    if attempt.reason == Reason.DEACTIVATED:
        message = f"{attempt.message} Change the spec to queue the job again."
        return hold(draft, Reason.DEACTIVATED, message)
    match decision.action:
        case "complete" if _wants_more(draft, attempt):
            _continue(draft, attempt)
        case "complete":
            _complete(draft, attempt)
        case "fail":
            _fail(draft, attempt, decision)
        case "suspend":
            reason = _SUSPENDING.get(attempt.exit_code or 0, attempt.reason or Reason.SUSPENDED_BY_GUARD)
            message = f"{decision.message} Change the spec to resume from the newest checkpoint."
            hold(draft, reason, message)
        case "stop":
            start(draft)
        case _:
            _restart(draft, draft.status.attempts[-1], decision)


def _wants_more(draft: Draft, attempt: Attempt) -> bool:
    """Whether schedule.steps was raised after the attempt had read its job file."""
    if draft.job.parsed is None or attempt.steps is None:
        return False
    return (draft.job.spec.schedule.steps or 0) > attempt.steps


def _continue(draft: Draft, attempt: Attempt) -> None:
    steps = draft.job.spec.schedule.steps
    message = f"Attempt {attempt.number} finished step {attempt.steps}; another one continues to step {steps}."
    draft.set_condition("Training", False, Reason.RESTARTING, message)
    draft.event("Normal", Reason.RESTARTING, message)
    start(draft)


def _complete(draft: Draft, attempt: Attempt) -> None:
    message = attempt.message or "The run is complete."
    kept = "The pods are kept for their logs and hold no resources."
    draft.set_condition("Succeeded", True, Reason.COMPLETED, message)
    draft.set_condition("Training", False, Reason.COMPLETED, "The run is complete.")
    draft.set_condition("PodsReady", False, Reason.COMPLETED, kept)
    draft.event("Normal", Reason.COMPLETED, message)


def _fail(draft: Draft, attempt: Attempt, decision: Decision) -> None:
    draft.stop("Failed", decision.reason, decision.message)
    draft.set_condition("Training", False, decision.reason, "The run has failed.")
    draft.set_condition("PodsReady", False, decision.reason, "The run has failed.")
    draft.event("Warning", decision.reason, f"Attempt {attempt.number} was the last: {decision.message}")


def _restart(draft: Draft, attempt: Attempt, decision: Decision) -> None:
    total = draft.status.restarts_total
    earlier = attempt.number - 1 if total is None else total
    delay = decision.delay_seconds
    if attempt.reason == Reason.START_TIMEOUT:
        # Two gangs that got half of their pods each must not return at the same moment.
        delay = max(delay, draft.policy.backoff_seconds) * (1 + _jitter(draft.job.uid, attempt.number))
    next_at = timestamp(draft.now + delay) if delay > 0 else None
    draft.change(
        restarts_counted=decision.restarts,
        restarts_uncounted=_uncounted(draft, attempt, decision),
        restarts_total=earlier + 1,
        next_attempt_at=next_at,
    )
    why = f"Attempt {attempt.number} ended ({attempt.reason}): {attempt.message or 'no message was left.'}"
    draft.set_condition("Training", False, Reason.RESTARTING, why)
    counted = f"restart {decision.restarts} of {draft.policy.max_restarts}"
    count = counted if decision.counted else "not counted as a restart"
    lasted = int(age(attempt.started_at, draft.now))
    message = f"Attempt {attempt.number} ended after {lasted} s: {attempt.message} Next in {int(delay)} s, {count}."
    draft.event("Warning", attempt.reason or Reason.RESTARTING, message)
    start(draft)


def _uncounted(draft: Draft, attempt: Attempt, decision: Decision) -> dict[str, int] | None:
    """Uncounted restarts by reason, with this one; a finished step clears them."""
    known = {} if attempt.to_step is not None else draft.status.restarts_uncounted or {}
    if not decision.counted:
        known = {**known, decision.reason: known.get(decision.reason, 0) + 1}
    return known or None


def _jitter(uid: str, number: int) -> float:
    """A fraction from 0 to 1, always the same for one attempt of one job."""
    return hashlib.sha256(f"{uid}/{number}".encode()).digest()[0] / 255
