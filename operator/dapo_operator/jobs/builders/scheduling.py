"""Where a job's pods are placed: close together, and off lost nodes."""

from dataclasses import dataclass
from typing import Any, Final

from dapo_core.jobspec import DAPOJobSpec
from dapo_core.naming import LABEL_ATTEMPT, LABEL_JOB, Role
from dapo_operator.jobs.job_objects import Object, Site

# Kubernetes waits five minutes before it evicts pods from a lost node; an attempt that lost one is over long before.
LOST_NODE_SECONDS: Final = 60
HOSTNAME: Final = "kubernetes.io/hostname"
_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"


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


def placement(spec: DAPOJobSpec, job: str, role: Role, attempt: int | None, site: Site) -> dict[str, Any]:
    """Fields of the pod's spec that decide on which nodes it may run: ranks and engines close together, never spread.
    The loss of any node ends the attempt, and each step waits for the slowest link. `attempt` None: close to pods of
    several attempts."""
    fields: dict[str, Any] = {"tolerations": _tolerations(spec, role)}
    # For affinity the scheduler looks at all pods of the cluster, so pods without peers do without.
    if role == "head" or spec.topology.layout.pod_count <= 2:
        return fields
    peers = {"matchLabels": {LABEL_JOB: job, **({LABEL_ATTEMPT: str(attempt)} if attempt else {})}}
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
