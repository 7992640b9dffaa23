"""The end of an attempt: its pods are deleted, the head first so that it can save a checkpoint."""

from typing import Final

from dapo_core.run.failure_policy import NEVER_RETRIED, Failure
from dapo_core.run.reasons import ExitCode, Reason
from dapo_core.run.status import Attempt
from dapo_operator.jobs.builders.pods import grace_seconds
from dapo_operator.jobs.observed import Pod
from dapo_operator.jobs.planner.draft import Draft, overdue
from dapo_operator.jobs.planner.in_place import trainers_that_stay
from dapo_operator.jobs.planner.nodes import note_node_faults
from dapo_operator.jobs.planner.pod_failures import SECONDARY, SETTLE_SECONDS, Ending, head_end, head_of
from dapo_operator.jobs.planner.restart import conclude, decision_on
from dapo_operator.kube.objects import timestamp, unix_seconds

# A hung trainer saves nothing: it gets this long to write its stacks to the log.
HUNG_GRACE_SECONDS: Final = 30
# The workers of a driver that is done end immediately by themselves.
LEAVE_SECONDS: Final = 30
# Pods that have nothing left to save: those of a driver that has ended, and those of a lost node, which nobody ends.
LEFT_GRACE_SECONDS: Final = 10
_MAX_MESSAGE: Final = 1000
# No process explains these ends: the driver's exit code would count a start that waited for room, and says nothing of
# a node.
_WITHOUT_CODE: Final = (Reason.START_TIMEOUT, Reason.NODE_LOST)
# By these codes the driver decides what follows, whatever the attempt's end was meant to be followed by.
_DECIDING: Final = (*NEVER_RETRIED, ExitCode.SAMPLING_EXHAUSTED, ExitCode.GUARD)


def begin(draft: Draft, ending: Ending) -> None:
    """Record why the attempt ends, before any of its pods is deleted."""
    draft.change_attempt(
        ending_at=timestamp(draft.now),
        reason=ending.reason or Failure(ending.exit_code).why,
        message=ending.message[:_MAX_MESSAGE],
        exit_code=ending.exit_code,
        role=ending.role,
    )
    if ending.reason == Reason.STALLED:
        draft.set_condition("Stalled", True, Reason.STALLED, ending.message)
        draft.event("Warning", Reason.STALLED, ending.message)
    draft.clear_condition("RolloutsDegraded", Reason.ENDING, "The attempt is ending.")
    draft.set_condition("Training", False, Reason.ENDING, f"The attempt is ending: {ending.message}")
    if draft.attempt is not None:
        terminate(draft, draft.attempt)


def terminate(draft: Draft, attempt: Attempt) -> None:
    """Delete the pods of an attempt that ends; once the last one is gone, decide what follows."""
    attempt = _with_lost_node(draft, _with_head_end(draft, attempt))
    note_node_faults(draft, attempt)
    decision = decision_on(draft, attempt)
    keep, staying = decision.action in ("complete", "fail"), trainers_that_stay(draft, attempt, decision)
    # The pods of a finished run are kept for their logs; they no longer hold resources.
    left = [pod for pod in draft.pods if not (keep and pod.over) and pod not in staying]
    if not left and not any(pod.ready for pod in staying):
        return conclude(draft, attempt, trainers_stay=bool(staying))
    if attempt.reason == Reason.NODE_LOST or not _waits(draft, attempt):
        _delete(draft, attempt, left)
    draft.set_condition("PodsReady", False, Reason.ENDING, f"The pods of attempt {attempt.number} are ending.")
    return None


def _with_head_end(draft: Draft, attempt: Attempt) -> Attempt:
    """The head's last words replace those of a worker that lost it, and a completed run is completed. Whoever ended an
    attempt on purpose reads in the exit code whether the driver stopped cleanly."""
    end = head_end(draft.ends)
    if end is None or (attempt.role == "head" and attempt.exit_code is not None):
        return attempt
    explains = attempt.role not in (None, "head") and attempt.exit_code in SECONDARY
    fields: dict[str, str | int | None]
    if end.exit_code == ExitCode.DONE or explains:
        fields = {
            "reason": end.reason or Failure(end.exit_code).why,
            "message": end.message[:_MAX_MESSAGE],
            "exit_code": end.exit_code,
            "role": end.role,
        }
    elif attempt.exit_code is None and attempt.reason not in _WITHOUT_CODE and end.exit_code not in _DECIDING:
        fields = {"exit_code": end.exit_code}
    else:
        return attempt
    draft.change_attempt(**fields)
    return attempt.model_copy(update=fields)


def _with_lost_node(draft: Draft, attempt: Attempt) -> Attempt:
    """Whoever lost another pod exits with 30 immediately. That the pod's node is lost shows minutes later, by the
    control plane's condition or because no kubelet ends the pod; then the job is not at fault. Rollouts are replaced,
    and nobody exits because of one."""
    if attempt.exit_code != ExitCode.DISTRIBUTED or attempt.reason != Reason.DISTRIBUTED_FAULT:
        return attempt
    taken = next((pod for pod in draft.ends if pod.disruption is not None and pod.role != "rollout"), None)
    lost = next((pod for pod in draft.core if not pod.finished and _is_lost(draft, pod)), None)
    if taken is not None:
        reason, message = taken.disruption, f"The cluster removed {taken.name} ({taken.disruption})."
    elif lost is not None:
        reason, message = Reason.NODE_LOST, f"The node of {lost.name} is lost: nothing on it ended the pod."
    else:
        return attempt
    fields = {"reason": reason, "message": message, "exit_code": None}
    draft.change_attempt(**fields)
    return attempt.model_copy(update=fields)


def _is_lost(draft: Draft, pod: Pod) -> bool:
    node = draft.node_of(pod)
    return overdue(pod, draft.now) or node.gone is not None or node.silent_since is not None


def _waits(draft: Draft, attempt: Attempt) -> bool:
    """Whether to delete nothing yet: the head may still report a reason, or the workers end by themselves."""
    head = head_of(draft.pods)
    began = unix_seconds(attempt.ending_at) or draft.now
    if attempt.exit_code == ExitCode.DONE and attempt.role == "head":
        until = began + LEAVE_SECONDS
    elif attempt.role not in (None, "head") and attempt.exit_code in SECONDARY and head and not head.deleting:
        until = began + SETTLE_SECONDS if not head.finished else began
    else:
        return False
    # A start in the future was written by a wrong clock; nothing waits for it.
    if not began <= draft.now < until:
        return False
    draft.wake(until)
    return True


def _delete(draft: Draft, attempt: Attempt, left: list[Pod]) -> None:
    head = next((pod for pod in left if pod.role == "head"), None)
    workers = [pod for pod in left if pod.role != "head"]
    if attempt.reason == Reason.STALLED:
        for pod in left:
            draft.delete(pod, HUNG_GRACE_SECONDS)
        return
    if attempt.reason == Reason.NODE_LOST or any(draft.lost(pod) for pod in left):
        # A checkpoint needs every rank.
        for pod in left:
            draft.delete(pod, LEFT_GRACE_SECONDS)
        return
    if head is not None:
        draft.delete(head)
        if not head.finished:
            # Its workers are needed for the last checkpoint.
            began = unix_seconds(attempt.ending_at) or draft.now
            until = began + grace_seconds(draft.policy)
            if began <= draft.now < until:
                draft.wake(until)
                return
    for pod in workers:
        draft.delete(pod, LEFT_GRACE_SECONDS)
