"""An attempt that ends: its pods go, the head first so that it can save, and then what follows is decided."""

from typing import Final

from dapo_core.jobspec import DAPOJobSpec
from dapo_core.naming import ROLES
from dapo_core.run.failure_policy import Decision, Failure, History, decide, failure_of, fruitless
from dapo_core.run.reasons import ExitCode, Reason
from dapo_core.run.status import Attempt
from dapo_operator.jobs.builders.pods import grace_seconds
from dapo_operator.jobs.observed import Pod
from dapo_operator.jobs.planner.draft import Draft, overdue
from dapo_operator.jobs.planner.faults import SECONDARY, Ending, head_end, head_of
from dapo_operator.jobs.planner.starting import between, hold, jitter
from dapo_operator.kube.clock import age, seconds, stamp

# How long a worker that lost its head waits for the head's own word about why.
SETTLE_SECONDS: Final = 20
# A hung trainer saves nothing: it gets this long to leave its stacks in the log.
HUNG_GRACE_SECONDS: Final = 30
# Workers of a driver that is done leave by themselves, at once.
LEAVE_SECONDS: Final = 30
_MAX_MESSAGE: Final = 1000
# The reason of condition Suspended, by the exit code that suspends a job.
_HELD: Final[dict[int, str]] = {
    ExitCode.SAMPLING_EXHAUSTED: Reason.SUSPENDED_BY_SAMPLING,
    ExitCode.GUARD: Reason.SUSPENDED_BY_GUARD,
}


def begin(draft: Draft, ending: Ending) -> None:
    """Record why the attempt ends, before any of its pods is touched."""
    draft.change_attempt(
        ending_at=stamp(draft.now),
        reason=ending.reason or Failure(ending.exit_code).why,
        message=ending.message[:_MAX_MESSAGE],
        exit_code=ending.exit_code,
        role=ending.role,
    )
    if ending.reason == Reason.STALLED:
        draft.say("Stalled", True, Reason.STALLED, ending.message)
        draft.event("Warning", Reason.STALLED, ending.message)
    draft.say("Training", False, Reason.ENDING, f"The attempt ends: {ending.message}")
    if draft.attempt is not None:
        drain(draft, draft.attempt)


def drain(draft: Draft, attempt: Attempt) -> None:
    """Free the pods; when the last one is gone, the attempt is over."""
    attempt = _explained(draft, _heard(draft, attempt))
    keep = _decide(draft, attempt).action in ("complete", "fail")
    # The pods of a run that is over are kept for their logs; they hold no resources any more.
    left = [pod for pod in draft.pods if not (keep and pod.over)]
    if not left:
        return _over(draft, attempt)
    if not _waits(draft, attempt, left):
        _free(draft, attempt, left)
    draft.say("PodsReady", False, Reason.ENDING, f"The pods of attempt {attempt.number} are ending.")
    return None


def _heard(draft: Draft, attempt: Attempt) -> Attempt:
    """The head's own words count more than those of a worker that lost it, and a run that is complete is complete."""
    end = head_end(draft.ends)
    if end is None or attempt.role == "head":
        return attempt
    explains = attempt.role is not None and attempt.exit_code in SECONDARY
    if end.exit_code != ExitCode.DONE and not explains:
        return attempt
    fields = {
        "reason": end.reason or Failure(end.exit_code).why,
        "message": end.message[:_MAX_MESSAGE],
        "exit_code": end.exit_code,
        "role": end.role,
    }
    draft.change_attempt(**fields)
    return attempt.model_copy(update=fields)


def _explained(draft: Draft, attempt: Attempt) -> Attempt:
    """Whoever lost another pod says 30 at once, and that its node is lost is known minutes later: by the control
    plane's word, or because its kubelet does not end it. Then it was no fault of the job's."""
    if attempt.exit_code != ExitCode.DISTRIBUTED or attempt.reason != Reason.DISTRIBUTED_FAULT:
        return attempt
    taken = next((pod for pod in draft.ends if pod.disruption is not None), None)
    lost = next((pod for pod in draft.pods if not pod.finished and overdue(pod, draft.now)), None)
    if taken is not None:
        reason, message = taken.disruption, f"The cluster took {taken.name} ({taken.disruption})."
    elif lost is not None:
        reason, message = Reason.NODE_LOST, f"Nothing on its node ended {lost.name}: the node is lost."
    else:
        return attempt
    fields = {"reason": reason, "message": message, "exit_code": None}
    draft.change_attempt(**fields)
    return attempt.model_copy(update=fields)


def _waits(draft: Draft, attempt: Attempt, left: list[Pod]) -> bool:
    """Whether nothing is to be deleted yet: someone still has something to say, or leaves by itself."""
    head = head_of(draft.pods)
    began = seconds(attempt.ending_at) or draft.now
    if attempt.exit_code == ExitCode.DONE and attempt.role == "head":
        until = began + LEAVE_SECONDS
    elif attempt.role not in (None, "head") and attempt.exit_code in SECONDARY and head and not head.deleting:
        until = began + SETTLE_SECONDS if not head.finished else began
    else:
        return False
    # An end that lies ahead is of a clock that was wrong; nothing waits for it.
    if not began <= draft.now < until:
        return False
    draft.wake(until)
    return True


def _free(draft: Draft, attempt: Attempt, left: list[Pod]) -> None:
    head = next((pod for pod in left if pod.role == "head"), None)
    workers = [pod for pod in left if pod.role != "head"]
    if attempt.reason == Reason.STALLED:
        for each in left:
            draft.delete(each, HUNG_GRACE_SECONDS)
        return
    if head is not None:
        draft.delete(head)
        if not head.finished and head.disruption != Reason.NODE_LOST:
            # Its workers are needed for the last checkpoint.
            began = seconds(attempt.ending_at) or draft.now
            until = began + patience_seconds(draft)
            if began <= draft.now < until:
                draft.wake(until)
                return
    for each in workers:
        draft.delete(each)


def patience_seconds(draft: Draft) -> int:
    """Seconds the head has before its workers go as well."""
    return grace_seconds(draft.policy)


def _decide(draft: Draft, attempt: Attempt) -> Decision:
    """What follows this attempt, from what is known of its end so far."""
    earlier = [(before.from_step, before.to_step) for before in draft.status.attempts[:-1]]
    history = History(draft.status.restarts_counted or 0, fruitless(earlier), seconds(draft.status.started_at))
    return decide(draft.policy, _failure(draft, attempt), history, draft.now)


def _failure(draft: Draft, attempt: Attempt) -> Failure:
    spec: DAPOJobSpec | None = draft.job.spec if draft.job.job else None
    reason, message = attempt.reason or "", attempt.message or ""
    role = next((role for role in ROLES if role == attempt.role), None)
    if spec is None:
        return Failure(attempt.exit_code, reason, message, role)
    return failure_of(spec, attempt.exit_code, reason, message, role)


def _over(draft: Draft, attempt: Attempt) -> None:
    decision = _decide(draft, attempt)
    draft.change_attempt(ended_at=stamp(draft.now), to_step=_reached(draft, attempt), counted=decision.counted)
    match decision.action:
        case "complete":
            _complete(draft, attempt)
        case "fail":
            _fail(draft, attempt, decision)
        case "suspend":
            reason = _HELD.get(attempt.exit_code or 0, attempt.reason or Reason.SUSPENDED_BY_GUARD)
            message = f"{decision.message} Change the spec to go on from the newest checkpoint."
            hold(draft, reason, message)
        case "stop":
            between(draft)
        case _:
            _restart(draft, attempt, decision)


def _reached(draft: Draft, attempt: Attempt) -> int | None:
    """The last step this attempt finished, None when it finished none or nobody knows."""
    step = draft.seen.reached if draft.seen.recorded_attempt == attempt.number else None
    return step if step is not None and step > (attempt.from_step or 0) else None


def _complete(draft: Draft, attempt: Attempt) -> None:
    message = attempt.message or "The run is complete."
    draft.say("Succeeded", True, Reason.COMPLETED, message)
    draft.say("Training", False, Reason.COMPLETED, "The run is complete.")
    draft.say("PodsReady", False, Reason.COMPLETED, "The pods are kept for their logs and hold no resources.")
    draft.event("Normal", Reason.COMPLETED, message)


def _fail(draft: Draft, attempt: Attempt, decision: Decision) -> None:
    draft.say("Failed", True, decision.reason, decision.message)
    draft.say("Training", False, decision.reason, "The run has failed.")
    draft.say("PodsReady", False, decision.reason, "The run has failed.")
    draft.event("Warning", decision.reason, f"Attempt {attempt.number} was the last: {decision.message}")


def _restart(draft: Draft, attempt: Attempt, decision: Decision) -> None:
    counted = (draft.status.restarts_counted or 0) + decision.counted
    delay = decision.delay_seconds
    if attempt.reason == Reason.START_TIMEOUT:
        # Two gangs that each got a half must not come back at the same moment.
        delay = max(delay, draft.policy.backoff_seconds) * (1 + jitter(draft.job.uid, attempt.number))
    draft.change(restarts_counted=counted, next_attempt_at=stamp(draft.now + delay) if delay > 0 else None)
    draft.say("Training", False, Reason.RESTARTING, f"Attempt {attempt.number} ended ({attempt.reason}).")
    count = f"restart {counted} of {draft.policy.max_restarts}" if decision.counted else "not counted as a restart"
    lasted = int(age(attempt.started_at, draft.now))
    ended = f"Attempt {attempt.number} ended after {lasted} s: {attempt.message} Next in {int(delay)} s, {count}."
    draft.event("Warning", attempt.reason or Reason.RESTARTING, ended)
    between(draft)
