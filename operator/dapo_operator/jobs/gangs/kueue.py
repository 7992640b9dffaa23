"""Kueue through its Workload API: one Workload for each attempt, and pods once it is admitted.

The operator plays the part that Kueue's own integrations play for other kinds of jobs. Plain pod groups would not do:
Kueue keeps its finalizer on the pods of a group that has failed until they are replaced within the same group.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from dapo_operator.jobs.gangs.gang_scheduler import (
    AttemptOutcome,
    GangRequest,
    PodFields,
    PodSet,
    PodSetAssignment,
    Reservation,
    reservation_of,
)
from dapo_operator.jobs.job_objects import Object, Site
from dapo_operator.kube.objects import Resource

QUEUE_LABEL: Final = "kueue.x-k8s.io/queue-name"
PRIORITY_LABEL: Final = "kueue.x-k8s.io/priority-class"
# A job with it, as a label or an annotation, uses the Workload of this name: MultiKueue's copies have it.
PREBUILT: Final = "kueue.x-k8s.io/prebuilt-workload-name"
# `spec.managedBy` of a job that runs in another cluster, which Kueue chooses.
MULTIKUEUE: Final = "kueue.x-k8s.io/multikueue"
WORKLOAD_ANNOTATION: Final = "kueue.x-k8s.io/workload"
# Pods as earlier versions of the operator made them have it, and Kueue's finalizer.
GROUP_LABEL: Final = "kueue.x-k8s.io/pod-group-name"
POD_FINALIZER: Final = "kueue.x-k8s.io/managed"
FLAVORS: Final = Resource("kueue.x-k8s.io/v1beta2", "resourceflavors")
# Where the value of a priority class is found, by the group that the reference names.
PRIORITIES: Final = {
    "kueue.x-k8s.io": Resource("kueue.x-k8s.io/v1beta2", "workloadpriorityclasses"),
    "scheduling.k8s.io": Resource("scheduling.k8s.io/v1", "priorityclasses"),
}
# Why Kueue evicts what `waitForPodsReady` has waited for too long.
_PODS_READY_TIMEOUT: Final = "PodsReadyTimeout"
_POD_SET_LABEL: Final = "kueue.x-k8s.io/podset"
_TOPOLOGY_GATE: Final = "kueue.x-k8s.io/topology"
# What decides on a pod's resources and nodes. The rest may be newer than the pods that Kueue knows.
_TOLD: Final = (
    "nodeSelector",
    "affinity",
    "tolerations",
    "priorityClassName",
    "runtimeClassName",
    "resources",
    "resourceClaims",
    "restartPolicy",
    "overhead",
)
_TOLD_OF_CONTAINERS: Final = ("name", "image", "resources", "restartPolicy")
# The fields of a topology request, by the annotation of a pod template that Kueue's users know.
_TOPOLOGY: Final = {
    "kueue.x-k8s.io/podset-required-topology": "required",
    "kueue.x-k8s.io/podset-preferred-topology": "preferred",
}
# Kueue takes the gate off pods that have one of the annotations; this one is for those that asked for nothing.
_UNCONSTRAINED: Final = "kueue.x-k8s.io/podset-unconstrained-topology"


class Kueue:
    """Kueue 0.15 and later, which serve v1beta2."""

    name: Final = "kueue"
    resource: Final = Resource("kueue.x-k8s.io/v1beta2", "workloads")
    waits: Final = True

    def reserve(self, gang: GangRequest) -> Object:
        """The Workload. With a priority class it lacks `priority`, its value, which is read when it is created."""
        content: dict[str, Any] = {"podSets": [_pod_set(pods) for pods in gang.pod_sets], "active": True}
        content |= {"queueName": gang.queue} if gang.queue else {}
        if gang.workload_priority_class:
            content["priorityClassRef"] = _reference(
                "kueue.x-k8s.io", "WorkloadPriorityClass", gang.workload_priority_class
            )
        elif gang.priority_class:
            content["priorityClassRef"] = _reference("scheduling.k8s.io", "PriorityClass", gang.priority_class)
        return gang.object(self.resource.api_version, "Workload", spec=content)

    def pod_fields(self, group: str, queue: str | None, site: Site) -> PodFields:
        return PodFields(annotations={WORKLOAD_ANNOTATION: group})

    def observe(self, raw: Mapping[str, Any]) -> Reservation | None:
        found = reservation_of(self.name, raw)
        if found is None:
            return None
        status = raw.get("status") or {}
        conditions = {each["type"]: each for each in status.get("conditions") or ()}
        active = (raw.get("spec") or {}).get("active", True)
        return replace(
            found,
            admitted=_holds(conditions, "Admitted"),
            revoked=_revoked(found.name, conditions),
            late=(conditions.get("Evicted") or {}).get("reason") == _PODS_READY_TIMEOUT,
            deactivated=active is False,
            message=(conditions.get("QuotaReserved") or {}).get("message", ""),
            knows_ready=_holds(conditions, "PodsReady"),
            placements=_placements(status),
        )

    def report(self, known: Reservation, namespace: str, outcome: AttemptOutcome | None, at: str) -> Object:
        """`waitForPodsReady` goes by PodsReady; Finished is what Kueue counts, and frees the quota at once. Reasons and
        sentence are those of Kueue's own integrations."""
        if outcome is None:
            condition = ("PodsReady", "Started", "All pods reached readiness and the workload is running")
        else:
            condition = ("Finished", "Succeeded" if outcome.succeeded else "Failed", outcome.message)
        kind, reason, message = condition
        said = {"type": kind, "status": "True", "reason": reason, "message": message, "lastTransitionTime": at}
        meta = {"name": known.name, "namespace": namespace, "uid": known.uid}
        api_version = self.resource.api_version
        return {"apiVersion": api_version, "kind": "Workload", "metadata": meta, "status": {"conditions": [said]}}


def _pod_set(pods: PodSet) -> Object:
    annotations, spec = pods.pod["metadata"]["annotations"], pods.pod["spec"]
    told = {key: spec[key] for key in _TOLD if spec.get(key)}
    told |= {
        key: [{field: each[field] for field in _TOLD_OF_CONTAINERS if each.get(field)} for each in spec[key]]
        for key in ("containers", "initContainers")
        if spec.get(key)
    }
    made: Object = {"name": pods.role, "count": pods.count, "template": {"spec": told}}
    if pods.required < pods.count:
        made["minCount"] = max(1, pods.required)
    request: Object = {field: annotations[key] for key, field in _TOPOLOGY.items() if key in annotations}
    if annotations.get(_UNCONSTRAINED) == "true":
        request["unconstrained"] = True
    return made | ({"topologyRequest": request} if request else {})


def _reference(group: str, kind: str, name: str) -> dict[str, str]:
    return {"group": group, "kind": kind, "name": name}


def _holds(conditions: Mapping[str, Mapping[str, Any]], kind: str) -> bool:
    return (conditions.get(kind) or {}).get("status") == "True"


def _revoked(name: str, conditions: Mapping[str, Mapping[str, Any]]) -> str | None:
    for kind in ("Evicted", "Finished"):
        if _holds(conditions, kind):
            why, reason = conditions[kind].get("message", ""), conditions[kind].get("reason", "")
            return f"Kueue: Workload {name} is {kind} ({reason}). {why}".rstrip()
    return None


def _placements(status: Mapping[str, Any]) -> dict[str, PodSetAssignment]:
    """By role. Kueue's flavors are names here; what admission checks add is complete."""
    assignments = (status.get("admission") or {}).get("podSetAssignments") or ()
    checks = [update for check in status.get("admissionChecks") or () for update in check.get("podSetUpdates") or ()]
    return {
        each["name"]: _placement(each, [update for update in checks if update["name"] == each["name"]])
        for each in assignments
    }


def _placement(assignment: Mapping[str, Any], updates: Iterable[Mapping[str, Any]]) -> PodSetAssignment:
    tolerations: list[Mapping[str, Any]] = []
    merged: dict[str, dict[str, str]] = {"nodeSelector": {}, "labels": {}, "annotations": {}}
    for update in updates:
        tolerations += update.get("tolerations") or ()
        for key, into in merged.items():
            into |= update.get(key) or {}
    topology = assignment.get("topologyAssignment") is not None
    # Kueue's own controller takes the gate off, with the node that it has chosen for the pod.
    labels = merged["labels"] | ({_POD_SET_LABEL: assignment["name"]} if topology else {})
    return PodSetAssignment(
        count=assignment.get("count"),
        flavors=tuple(sorted(set((assignment.get("flavors") or {}).values()))),
        node_selector=merged["nodeSelector"],
        tolerations=tuple(tolerations),
        labels=labels,
        annotations=merged["annotations"],
        gates=(_TOPOLOGY_GATE,) if topology else (),
    )


def with_flavors(placement: PodSetAssignment, flavors: Mapping[str, Mapping[str, Any]]) -> PodSetAssignment:
    """The placement with the node labels and tolerations of its ResourceFlavors, whose specs are given by name."""
    selector, tolerations = dict(placement.node_selector), list(placement.tolerations)
    for name in placement.flavors:
        selector |= flavors[name].get("nodeLabels") or {}
        tolerations += [each for each in flavors[name].get("tolerations") or () if each not in tolerations]
    return replace(placement, node_selector=selector, tolerations=tuple(tolerations))


def placed(pod: Object, placement: PodSetAssignment) -> Object:
    """The pod where the placement allows it to run."""
    meta, spec = pod["metadata"], pod["spec"]
    changed = dict(spec)
    if placement.node_selector:
        changed["nodeSelector"] = {**(spec.get("nodeSelector") or {}), **placement.node_selector}
    if placement.tolerations:
        given = spec.get("tolerations") or []
        changed["tolerations"] = [*given, *(each for each in placement.tolerations if each not in given)]
    if placement.gates:
        changed["schedulingGates"] = [
            *(spec.get("schedulingGates") or ()),
            *({"name": name} for name in placement.gates),
        ]
    labels = {**meta.get("labels", {}), **placement.labels}
    annotations = {**meta.get("annotations", {}), **placement.annotations}
    if _TOPOLOGY_GATE in placement.gates and not any(key in annotations for key in _TOPOLOGY):
        annotations[_UNCONSTRAINED] = "true"
    return {**pod, "metadata": {**meta, "labels": labels, "annotations": annotations}, "spec": changed}
