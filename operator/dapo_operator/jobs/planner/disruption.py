"""Nodes that are lost or leave: the attempt ends, and the next one starts elsewhere. Pods that Kubernetes itself takes
are in `pod_failures`."""

from typing import Final

from dapo_core.run.reasons import Reason
from dapo_operator.jobs.actions import DeleteSupport
from dapo_operator.jobs.planner.draft import SILENT_SECONDS, Draft
from dapo_operator.jobs.planner.pod_failures import Ending

_BUDGET: Final = "PodDisruptionBudget"


def lost_node(draft: Draft) -> Ending | None:
    """A node of a pod is lost: nothing waits until Kubernetes deletes its pods, and nothing can be saved."""
    for pod in draft.pods:
        if pod.finished:
            continue
        node = draft.node_of(pod)
        if draft.lost(pod):
            why = node.gone or "its kubelet no longer reports"
            return Ending(Reason.NODE_LOST, f"Node {pod.node} of {pod.name} is lost: {why}.")
        if node.silent_since is not None:
            draft.wake(node.silent_since + SILENT_SECONDS)
    return None


def drained(draft: Draft) -> Ending | None:
    """A node of a pod is about to leave, and the policy is to move: the driver saves a checkpoint first."""
    if _denies(draft):
        return None
    for pod in draft.pods:
        leaving = draft.node_of(pod).leaving
        if leaving is not None and not pod.finished:
            return Ending(Reason.DRAINED, f"Node {pod.node} of {pod.name} is being drained: {leaving}.")
    return None


def _denies(draft: Draft) -> bool:
    """Whether the job is to stay. What a spec said that is invalid by now is known by its budget."""
    if draft.job.parsed is None:
        return (_BUDGET, draft.job.name) in draft.seen.support
    return draft.policy.disruption == "Deny"


def drop_budget(draft: Draft) -> None:
    """Delete the PodDisruptionBudget of a job that has no live attempt, or that may be moved: it would protect nothing,
    and alerts would report its missing pods."""
    name, attempt = draft.job.name, draft.attempt
    live = attempt is not None and attempt.ended_at is None
    if (_BUDGET, name) in draft.seen.support and not (live and _denies(draft)):
        draft.act(DeleteSupport(_BUDGET, name))
