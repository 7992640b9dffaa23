"""Where a job's pods go: trainers close to trainers, rollouts close to rollouts, and off a node that is lost."""

from typing import Any, Final

from dapo_core.jobspec import DAPOJobSpec
from dapo_core.naming import LABEL_ATTEMPT, LABEL_JOB, LABEL_ROLE, Role
from dapo_operator.jobs.builders.common import Object
from dapo_operator.jobs.builders.site import Site

# Kubernetes waits five minutes before it gives up a node's pods; an attempt that lost one is over long before.
LOST_NODE_SECONDS: Final = 60


def placement(spec: DAPOJobSpec, job: str, role: Role, attempt: int, site: Site) -> dict[str, Any]:
    """Fields of the pod's spec that say on which nodes it may be."""
    peers = {"matchLabels": {LABEL_JOB: job, LABEL_ROLE: role, LABEL_ATTEMPT: str(attempt)}}
    fields: dict[str, Any] = {"tolerations": _tolerations(spec, role)}
    # To weigh affinity the scheduler looks at all pods of the cluster, so pods without peers go without.
    if spec.topology.layout.pods[role] > 1:
        fields["affinity"] = {
            "podAffinity": {
                "preferredDuringSchedulingIgnoredDuringExecution": [
                    {"weight": 100, "podAffinityTerm": {"labelSelector": peers, "topologyKey": site.topology_key}}
                ]
            }
        }
        # Within that place over as many machines as there are: a machine's loss then takes least.
        fields["topologySpreadConstraints"] = [
            {
                "maxSkew": 1,
                "topologyKey": "kubernetes.io/hostname",
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": peers,
            }
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
