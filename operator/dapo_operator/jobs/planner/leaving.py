"""The end of a job's own life: deleted by someone, or by its time to live."""

from dapo_core.run.reasons import Reason
from dapo_operator.jobs.actions import DeleteJob, DeletePod, RemoveFinalizer
from dapo_operator.jobs.planner.conditions import find
from dapo_operator.jobs.planner.draft import FORCE_SECONDS, Draft
from dapo_operator.jobs.planner.ending import patience_seconds
from dapo_operator.kube.clock import seconds, stamp


def leave(draft: Draft) -> None:
    """Free the pods of a deleted job, the head first, and let the job go; it goes in any case when time is up."""
    if not draft.job.held:
        draft.gone = True
        return
    pods = [pod for pod in draft.seen.pods if pod.owned and not pod.over]
    since = draft.job.deleting_since or draft.now
    limit = since + 2 * patience_seconds(draft) + FORCE_SECONDS
    if not pods or draft.now >= limit:
        # Everything but pods on lost nodes Kubernetes removes by the owner references.
        draft.act(*(DeletePod(pod.name, pod.uid, 0) for pod in pods), RemoveFinalizer())
        draft.gone = True
        return
    attempt = draft.attempt
    if attempt is not None and attempt.ended_at is None and attempt.ending_at is None:
        message = "The job was deleted."
        draft.change_attempt(ending_at=stamp(draft.now), reason=Reason.DELETED, message=message)
        draft.say("Training", False, Reason.DELETED, message)
        draft.event("Normal", Reason.DELETED, "The job was deleted: its pods are ending, the head first.")
    heads = [pod for pod in pods if pod.role == "head" and not pod.finished]
    until = since + patience_seconds(draft)
    waiting = bool(heads) and draft.now < until
    for pod in heads if waiting else pods:
        draft.delete(pod)
    draft.wake(until if waiting else limit)


def rest(draft: Draft) -> None:
    """The run is over for good: nothing runs any more, and after its time to live the job goes."""
    for pod in draft.seen.pods:
        if pod.owned and not pod.over:
            draft.delete(pod)
    ttl = draft.policy.ttl_seconds_after_finished
    ended = find(draft.status.conditions, "Succeeded" if draft.holds("Succeeded") else "Failed")
    if ttl is None or ended is None:
        return
    at = (seconds(ended.last_transition_time) or draft.now) + ttl
    if draft.now >= at:
        draft.act(DeleteJob())
    else:
        draft.wake(at)
