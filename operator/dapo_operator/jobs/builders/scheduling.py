"""Where a job's pods are placed: all of them or none (gang scheduling), close together, and off lost nodes."""

from dataclasses import dataclass
from typing import Any, Final

from dapo_core.jobspec import DAPOJobSpec
from dapo_core.naming import LABEL_ATTEMPT, LABEL_JOB, Role
from dapo_operator.jobs.builders.common import Object, Site, group_name, support

# Kubernetes waits five minutes before it evicts pods from a lost node; an attempt that lost one is over long before.
LOST_NODE_SECONDS: Final = 60
HOSTNAME: Final = "kubernetes.io/hostname"
_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"
# The API version of the pod groups of each scheduler that has them.
POD_GROUPS: Final = {"volcano": "scheduling.volcano.sh/v1beta1", "coscheduling": "scheduling.x-k8s.io/v1alpha1"}


@dataclass(frozen=True)
class Avoid:
    """Names of nodes on which a pod should not run. `required`: must not."""

    nodes: tuple[str, ...] = ()
    required: bool = False


ANYWHERE: Final = Avoid()


def avoiding(spec: Object, avoid: Avoid) -> Object:
    """The pod's spec with node affinity against these nodes, in addition to what it has."""
    if not avoid.nodes:
        return spec
    # A field selector takes one value.
    fields = [{"key": "metadata.name", "operator": "NotIn", "values": [name]} for name in avoid.nodes]
    affinity = spec.get("affinity") or {}
    node = affinity.get("nodeAffinity") or {}
    if avoid.required:
        # Terms are alternatives, so each gets the condition; an empty one matches no node.
        terms = (node.get(_REQUIRED) or {}).get("nodeSelectorTerms") or [{"matchFields": []}]
        changed = [
            term | {"matchFields": [*(term.get("matchFields") or ()), *fields]} if term else term for term in terms
        ]
        node = node | {_REQUIRED: {"nodeSelectorTerms": changed}}
    else:
        preference = {"weight": 100, "preference": {"matchFields": fields}}
        node = node | {_PREFERRED: [*(node.get(_PREFERRED) or ()), preference]}
    return spec | {"affinity": affinity | {"nodeAffinity": node}}


def gang_fields(
    spec: DAPOJobSpec, job: str, attempt: int, site: Site
) -> tuple[dict[str, str], dict[str, str], dict[str, Any]]:
    """Labels, annotations and spec fields of each pod of a gang."""
    policy = spec.run_policy
    fields: dict[str, Any] = {"priorityClassName": policy.priority_class_name} if policy.priority_class_name else {}
    group = group_name(job, attempt)
    match policy.gang.scheduler:
        case "volcano":
            return {}, {"scheduling.k8s.io/group-name": group}, fields | {"schedulerName": "volcano"}
        case "coscheduling":
            return {"scheduling.x-k8s.io/pod-group": group}, {}, fields | {"schedulerName": site.coscheduler}
        case "kueue":
            labels = {"kueue.x-k8s.io/queue-name": policy.gang.queue or "", "kueue.x-k8s.io/pod-group-name": group}
            return labels, {"kueue.x-k8s.io/pod-group-total-count": str(spec.topology.layout.pod_count)}, fields
        case _:
            return {}, {}, fields


def pod_group(
    spec: DAPOJobSpec, job: str, namespace: str, uid: str, attempt: int, resources: dict[str, str]
) -> Object | None:
    """The PodGroup of an attempt; None when its scheduler has none. `resources`: the sum of its pods' requests."""
    gang = spec.run_policy.gang
    if gang.scheduler not in POD_GROUPS:
        return None
    content: dict[str, Any] = {"minMember": spec.topology.layout.pod_count}
    content |= {"minResources": resources} if resources else {}
    if gang.scheduler == "volcano":
        content |= {"queue": gang.queue} if gang.queue else {}
        if spec.run_policy.priority_class_name:
            content["priorityClassName"] = spec.run_policy.priority_class_name
    else:
        content["scheduleTimeoutSeconds"] = min(spec.run_policy.start_timeout_seconds, 3600)
    api_version = POD_GROUPS[gang.scheduler]
    return support(api_version, "PodGroup", group_name(job, attempt), namespace, job, uid, spec=content)


def placement(spec: DAPOJobSpec, job: str, role: Role, attempt: int, site: Site) -> dict[str, Any]:
    """Fields of the pod's spec that decide on which nodes it may run: ranks and engines close together, never spread.
    The loss of any node ends the attempt, and each step waits for the slowest link."""
    fields: dict[str, Any] = {"tolerations": _tolerations(spec, role)}
    # For affinity the scheduler looks at all pods of the cluster, so pods without peers do without.
    if role == "head" or spec.topology.layout.pod_count <= 2:
        return fields
    peers = {"matchLabels": {LABEL_JOB: job, LABEL_ATTEMPT: str(attempt)}}
    closest = [HOSTNAME, *site.topology_keys]
    # Each wider domain weighs half: two pods of one rack are better than any number that only share a zone.
    terms = [
        {"weight": max(1, 100 >> place), "podAffinityTerm": {"labelSelector": peers, "topologyKey": key}}
        for place, key in enumerate(closest)
    ]
    fields["affinity"] = {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": terms}}
    # Without a constraint the scheduler's default one applies, which spreads the pods of a Service. This one counts no
    # pod, since attempts are numbered from 1.
    none = {"matchLabels": {LABEL_JOB: job, LABEL_ATTEMPT: "0"}}
    fields["topologySpreadConstraints"] = [
        {"maxSkew": 1, "topologyKey": HOSTNAME, "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": none}
    ]
    return fields


def _tolerations(spec: DAPOJobSpec, role: Role) -> list[Object]:
    lost = [
        {
            "key": f"node.kubernetes.io/{what}",
            "operator": "Exists",
            "effect": "NoExecute",
            "tolerationSeconds": LOST_NODE_SECONDS,
        }
        for what in ("not-ready", "unreachable")
    ]
    if not spec.topology.layout.gpus_per_pod(role):
        return lost
    return [*lost, {"key": spec.topology.gpu_resource, "operator": "Exists", "effect": "NoSchedule"}]
