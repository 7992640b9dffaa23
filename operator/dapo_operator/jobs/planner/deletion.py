"""The end of a DAPOJob, by a user or when its time to live is over; and what is deleted when its run is over."""

from dapo_core.run.reasons import Reason
from dapo_operator.jobs.actions import DeleteJob, DeletePod, DeleteSupport, RemoveFinalizer
from dapo_operator.jobs.builders.pods import grace_seconds
from dapo_operator.jobs.builders.support import SPEC_FREE
from dapo_operator.jobs.planner.draft import FORCE_SECONDS, Draft
from dapo_operator.kube.objects import timestamp, unix_seconds


def delete_job(draft: Draft) -> None:
    """Delete the pods of a deleted job, the head first, then remove the finalizer, which happens at the latest after
    twice the grace period and FORCE_SECONDS."""
    if not draft.job.held:
        draft.gone = True
        return
    pods = [pod for pod in draft.seen.pods if pod.owned and not pod.over]
    grace = grace_seconds(draft.policy)
    since = draft.job.deleting_since or draft.now
    limit = since + 2 * grace + FORCE_SECONDS
    if not pods or draft.now >= limit:
        # Kubernetes deletes everything else by its owner references.
        draft.act(*(DeletePod(pod.name, pod.uid, 0) for pod in pods), RemoveFinalizer())
        draft.gone = True
        return
    attempt = draft.attempt
    if attempt is not None and attempt.ended_at is None and attempt.ending_at is None:
        message = "The job was deleted."
        draft.change_attempt(ending_at=timestamp(draft.now), reason=Reason.DELETED, message=message)
        draft.set_condition("Training", False, Reason.DELETED, message)
        draft.event("Normal", Reason.DELETED, "The job was deleted: its pods are ending, the head first.")
    heads = [pod for pod in pods if pod.role == "head" and not pod.finished]
    until = since + grace
    waiting = bool(heads) and draft.now < until
    for pod in heads if waiting else pods:
        draft.delete(pod)
    draft.wake(until if waiting else limit)


def clean_up(draft: Draft) -> None:
    """The run is over: delete the pods that still run, and the job after ttlSecondsAfterFinished."""
    for pod in draft.seen.pods:
        if pod.owned and not pod.over:
            draft.delete(pod)
    ttl = draft.job.ttl_seconds
    ended = draft.condition("Succeeded" if draft.holds("Succeeded") else "Failed")
    if ttl is None or ended is None:
        return
    at = (unix_seconds(ended.last_transition_time) or draft.now) + ttl
    if draft.now >= at:
        draft.act(DeleteJob())
    else:
        draft.wake(at)


def drop_network(draft: Draft) -> None:
    """The run is over: delete what connected its pods, once none of them runs any more. Kubernetes' controllers would
    keep the addresses of thousands of finished jobs. A run that continues after all gets both before its pods."""
    if any(pod.owned and not pod.over for pod in draft.seen.pods):
        return
    draft.act(*(DeleteSupport(kind, name) for kind, name in draft.seen.support if kind in SPEC_FREE))
