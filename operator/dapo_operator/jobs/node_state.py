"""What the operator knows of a node: whether it is lost, and whether it is about to leave. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from dapo_operator.kube.objects import unix_seconds

# Taints by which a controller says that a node's machine is gone; its pods run no more.
_GONE_TAINTS: Final = ("node.kubernetes.io/out-of-service", "node.cloudprovider.kubernetes.io/shutdown")
# Taints by which autoscalers and the handlers of spot notices say that a node will be taken away within minutes.
_LEAVING_TAINTS: Final = (
    "ToBeDeletedByClusterAutoscaler",
    "karpenter.sh/disrupted",
    "cloud.google.com/impending-node-termination",
    "aws-node-termination-handler/spot-itn",
    "aws-node-termination-handler/scheduled-maintenance",
    "aws-node-termination-handler/asg-lifecycle-termination",
)
# The kubelet's words in condition Ready while it shuts the node down gracefully.
_SHUTTING_DOWN: Final = "node is shutting down"


@dataclass(frozen=True, slots=True)
class Node:
    """One node. `gone` says why it is certainly lost. `silent_since` (Unix seconds): its kubelet has not reported since
    before then, and the control plane gave it up. `leaving` says why it will be taken away, or is being drained."""

    gone: str | None = None
    silent_since: float | None = None
    leaving: str | None = None


HEALTHY: Final = Node()
DELETED: Final = Node(gone="it was deleted")


def offered_by(raw: Mapping[str, Any]) -> dict[str, int]:
    """How much pods may request of each extended resource of a node, and 1 under "" for the node itself."""
    allocatable = raw.get("status", {}).get("allocatable") or {}
    # Those of Kubernetes itself have no domain, and quantities with units.
    counts = {name: int(amount) for name, amount in allocatable.items() if "/" in name and str(amount).isdecimal()}
    return {"": 1} | {name: count for name, count in counts.items() if count}


def node_of(raw: Mapping[str, Any]) -> Node:
    """The node as a small value; HEALTHY, always the same object, for one of which there is nothing to say."""
    spec, conditions = raw.get("spec", {}), raw.get("status", {}).get("conditions") or ()
    taints: Sequence[str] = [taint.get("key", "") for taint in spec.get("taints") or ()]
    ready: Mapping[str, Any] = next((condition for condition in conditions if condition.get("type") == "Ready"), {})
    gone = next((f"it has taint {taint}" for taint in _GONE_TAINTS if taint in taints), None)
    silent = unix_seconds(ready.get("lastTransitionTime")) if ready.get("status") == "Unknown" else None
    leaving = next((f"taint {taint}" for taint in _LEAVING_TAINTS if taint in taints), None)
    if leaving is None and ready.get("status") == "False" and _SHUTTING_DOWN in ready.get("message", ""):
        leaving = "it is shutting down"
    if leaving is None and spec.get("unschedulable"):
        leaving = "it is cordoned"
    node = Node(gone, silent, leaving)
    return HEALTHY if node == HEALTHY else node
