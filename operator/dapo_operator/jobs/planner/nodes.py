"""Nodes that are lost, drained, or failed the job before.

The attempt of the head or a trainer on a node that is lost or leaves ends, and the next one starts elsewhere. It avoids
nodes that cannot train it, and those on which it failed repeatedly. Pods that Kubernetes itself takes are in
`pod_failures`, rollouts in `rollout_lives`.
"""

import re
from collections import Counter
from collections.abc import Sequence
from typing import Final

from dapo_core.jobspec import DAPOJob
from dapo_core.naming import Role
from dapo_core.run.reasons import ExitCode, Reason
from dapo_core.run.status import MAX_NODE_FAULTS, Attempt, NodeFault
from dapo_operator.jobs.actions import DeleteSupport
from dapo_operator.jobs.observed import Pod
from dapo_operator.jobs.planner.draft import SILENT_SECONDS, Draft
from dapo_operator.jobs.planner.pod_failures import Ending
from dapo_operator.kube.objects import age, timestamp

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


# Faults count for a day, and device faults from the second on: the rank that reports one may be its victim.
FORGIVEN_SECONDS: Final = 86_400
DEVICE_FAULTS: Final = 2
_DEVICE: Final = re.compile(r"\bNCCL\b|\bXid\b|CUDA error|uncorrectable ECC", re.IGNORECASE)


def note_node_faults(draft: Draft, attempt: Attempt) -> None:
    """Record the nodes that the ends of the attempt's pods name, once for each attempt."""
    found = {node: reason for pod in draft.ends for node, reason in _named(pod, draft.ends)}
    known = {fault.node for fault in draft.status.node_faults or () if fault.attempt == attempt.number}
    at, number = timestamp(draft.now), attempt.number
    named = sorted((node, reason) for node, reason in found.items() if node not in known)
    new = [NodeFault(node=node, at=at, attempt=number, reason=reason) for node, reason in named]
    kept = [fault for fault in draft.status.node_faults or () if age(fault.at, draft.now) < FORGIVEN_SECONDS]
    if new or len(kept) != len(draft.status.node_faults or ()):
        draft.change(node_faults=[*kept, *new][-MAX_NODE_FAULTS:] or None)


def avoided_nodes(draft: Draft) -> list[str]:
    """The nodes to avoid, sorted; condition NodesAvoided names them."""
    faults = [fault for fault in draft.status.node_faults or () if age(fault.at, draft.now) < FORGIVEN_SECONDS]
    unfit = {fault.node for fault in faults if fault.reason == Reason.NODE_UNFIT}
    counts = Counter(fault.node for fault in faults)
    return sorted(unfit | {node for node, count in counts.items() if count >= DEVICE_FAULTS})


def has_room_without(draft: Draft, avoided: Sequence[str], job: DAPOJob, role: Role) -> bool:
    """Whether the cluster has nodes besides the avoided ones for a pod of this role; for one with GPUs, whether these
    nodes have as many as all pods with GPUs request. False when nodes are not watched."""
    offering, layout = draft.seen.offering or {}, job.spec.topology.layout
    others = [count for node, count in offering.items() if node not in avoided]
    if not (gpus := layout.gpus_per_pod(role)):
        return bool(others)
    wanted = sum(pods for each, pods in layout.pods.items() if layout.gpus_per_pod(each))
    return sum(count // gpus for count in others) >= wanted


def tell_avoided(draft: Draft) -> None:
    """Condition NodesAvoided, as of the start of an attempt."""
    faults, nodes = draft.status.node_faults or (), avoided_nodes(draft)
    if not nodes:
        return draft.clear_condition("NodesAvoided", Reason.NODES_FORGIVEN, "No node is avoided.")
    known = draft.condition("NodesAvoided")
    why = "; ".join(f"{node} ({', '.join(fault.reason for fault in faults if fault.node == node)})" for node in nodes)
    message = f"Avoided for a day after these faults: {why}. `dapo doctor` checks a node."
    if known is None or known.status != "True" or known.message != message:
        draft.event("Warning", Reason.NODES_AVOIDED, message)
    return draft.set_condition("NodesAvoided", True, Reason.NODES_AVOIDED, message)


def _named(pod: Pod, all_pods: Sequence[Pod]) -> list[tuple[str, str]]:
    """The node that the end of a pod names, and the reason."""
    if pod.exit_code == ExitCode.NODE_UNFIT:
        return [(pod.node, Reason.NODE_UNFIT)] if pod.node is not None else []
    words = pod.words
    if words is None or not _DEVICE.search(words.message):
        return []
    # The driver reports the errors of ranks in other pods.
    if pod.role == "head":
        raised = [one.node for one in all_pods if one.address is not None and one.address == words.address]
    else:
        raised = [pod.node]
    return [(node, Reason.DEVICE_FAULT) for node in raised if node is not None]
