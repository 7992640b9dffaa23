"""Nodes that are lost or leave: the attempt of the head or a trainer there ends, and the next one starts elsewhere.
Pods that Kubernetes itself takes are in `pod_failures`, rollouts in `rollout_lives`."""

from typing import Final

from dapo_core.run.reasons import Reason
from dapo_operator.jobs.actions import DeleteSupport
from dapo_operator.jobs.observed import Pod
from dapo_operator.jobs.planner.draft import SILENT_SECONDS, Draft
from dapo_operator.jobs.planner.pod_failures import Ending

_BUDGET: Final = "PodDisruptionBudget"


def lost_node(draft: Draft) -> Ending | None:
    """A node of a pod is lost: nothing waits until Kubernetes deletes its pods, and nothing can be saved."""
    endings = [loss_of_node(draft, pod) for pod in draft.core if not pod.finished]
    return next((ending for ending in endings if ending is not None), None)


def loss_of_node(draft: Draft, pod: Pod) -> Ending | None:
    """That the pod's node is lost; None while it is not."""
    node = draft.node_of(pod)
    if draft.lost(pod):
        why = node.gone or "its kubelet no longer reports"
        return Ending(Reason.NODE_LOST, f"Node {pod.node} of {pod.name} is lost: {why}.")
    if node.silent_since is not None:
        draft.wake(node.silent_since + SILENT_SECONDS)
    return None


def drained(draft: Draft) -> Ending | None:
    """A node of a pod is about to leave, and the policy is to move: the driver saves a checkpoint first."""
    endings = [drain_of_node(draft, pod) for pod in draft.core if not pod.finished]
    return next((ending for ending in endings if ending is not None), None)


def drain_of_node(draft: Draft, pod: Pod) -> Ending | None:
    """That the pod's node is about to leave; None while it is not, and when the job is to stay."""
    leaving = draft.node_of(pod).leaving
    if leaving is None or _denies(draft):
        return None
    return Ending(Reason.DRAINED, f"Node {pod.node} of {pod.name} is being drained: {leaving}.")


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
