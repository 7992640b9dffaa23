"""All gang schedulers, by the name that `spec.runPolicy.gang.scheduler` has for them; Kueue is in `kueue`.

Those with a PodGroup each are Volcano, the coscheduling plugin, KAI, and Kubernetes' own. Pods are created at once, and
their scheduler holds them back until all fit.
"""

from collections.abc import Mapping
from typing import Any, Final

from dapo_operator.jobs.gangs.gang_scheduler import (
    AttemptOutcome,
    GangRequest,
    GangScheduler,
    PodFields,
    Reservation,
    reservation_of,
)
from dapo_operator.jobs.gangs.kueue import Kueue
from dapo_operator.jobs.job_objects import Object, Site
from dapo_operator.kube.objects import Resource

_KIND: Final = "PodGroup"
# The longest that the coscheduling plugin lets pods wait for the rest of their group.
_LONGEST_WAIT_SECONDS: Final = 3600
# Annotations of pods that Volcano's and KAI's users know, and the fields of a PodGroup that their own controllers make
# of them.
_VOLCANO_TOPOLOGY: Final = {
    "volcano.sh/network-topology-mode": "mode",
    "volcano.sh/network-topology-highest-tier": "highestTierAllowed",
}
_KAI_TOPOLOGY: Final = {
    "kai.scheduler/topology": "topology",
    "kai.scheduler/topology-required-placement": "requiredTopologyLevel",
    "kai.scheduler/topology-preferred-placement": "preferredTopologyLevel",
}


class _PodGroups:
    """What they have in common."""

    name: str
    resource: Resource
    waits: Final = False

    def observe(self, raw: Mapping[str, Any]) -> Reservation | None:
        return reservation_of(self.name, raw)

    def report(self, known: Reservation, namespace: str, outcome: AttemptOutcome | None, at: str) -> None:
        return None


class Volcano(_PodGroups):
    """Volcano 1.9 and later. A group that is not deleted reserves its resources again once its pods are gone."""

    name = "volcano"
    resource = Resource("scheduling.volcano.sh/v1beta1", "podgroups")

    def reserve(self, gang: GangRequest) -> Object:
        content = _queued(gang) | _minimum(gang) | _topology(gang, "networkTopology", _VOLCANO_TOPOLOGY)
        return gang.object(self.resource.api_version, _KIND, spec=content)

    def pod_fields(self, group: str, queue: str | None, site: Site) -> PodFields:
        return PodFields(annotations={"scheduling.k8s.io/group-name": group}, spec={"schedulerName": "volcano"})


class Coscheduling(_PodGroups):
    """The coscheduling plugin of sigs.k8s.io/scheduler-plugins."""

    name = "coscheduling"
    resource = Resource("scheduling.x-k8s.io/v1alpha1", "podgroups")

    def reserve(self, gang: GangRequest) -> Object:
        wait = min(gang.start_timeout_seconds, _LONGEST_WAIT_SECONDS)
        content = {"minMember": gang.required_pods, **_minimum(gang), "scheduleTimeoutSeconds": wait}
        return gang.object(self.resource.api_version, _KIND, spec=content)

    def pod_fields(self, group: str, queue: str | None, site: Site) -> PodFields:
        return PodFields({"scheduling.x-k8s.io/pod-group": group}, spec={"schedulerName": site.coscheduler})


class Kai(_PodGroups):
    """KAI. Its pod grouper would make a group of each pod, since it does not know DAPOJobs, so an annotation makes it
    skip them."""

    name = "kai"
    resource = Resource("scheduling.run.ai/v2alpha2", "podgroups")

    def reserve(self, gang: GangRequest) -> Object:
        content = _queued(gang) | _topology(gang, "topologyConstraint", _KAI_TOPOLOGY)
        body = gang.object(self.resource.api_version, _KIND, spec=content)
        body["metadata"]["labels"] |= _kai_queue(gang.queue)
        return body

    def pod_fields(self, group: str, queue: str | None, site: Site) -> PodFields:
        annotations = {"pod-group-name": group, "kai.scheduler/skip-podgrouper": "true"}
        return PodFields(_kai_queue(queue), annotations, {"schedulerName": "kai-scheduler"})


class InTree(_PodGroups):
    """Kubernetes' own gang scheduling, where the API server serves scheduling.k8s.io/v1beta1: kube-scheduler."""

    name = "kubernetes"
    resource = Resource("scheduling.k8s.io/v1beta1", "podgroups")

    def reserve(self, gang: GangRequest) -> Object:
        content = {
            "schedulingPolicy": {"gang": {"minCount": gang.required_pods}},
            # The loss of one pod ends the attempt: whoever preempts takes all.
            "disruptionMode": {"all": {}},
        }
        return gang.object(self.resource.api_version, _KIND, spec=content | _priority(gang))

    def pod_fields(self, group: str, queue: str | None, site: Site) -> PodFields:
        return PodFields(spec={"schedulingGroup": {"podGroupName": group}})


def _queued(gang: GangRequest) -> dict[str, Any]:
    return {"minMember": gang.required_pods} | ({"queue": gang.queue} if gang.queue else {}) | _priority(gang)


def _priority(gang: GangRequest) -> dict[str, Any]:
    return {"priorityClassName": gang.priority_class} if gang.priority_class else {}


def _minimum(gang: GangRequest) -> dict[str, Any]:
    return {"minResources": dict(gang.resources)} if gang.resources else {}


def _topology(gang: GangRequest, field: str, names: Mapping[str, str]) -> dict[str, Any]:
    """Nothing unless a pod asks for it. A value that is no number where one is wanted is left to the API server, which
    names the field."""
    given = {name: gang.annotations[key] for key, name in names.items() if key in gang.annotations}
    return {field: {name: int(each) if each.isdecimal() else each for name, each in given.items()}} if given else {}


def _kai_queue(queue: str | None) -> dict[str, str]:
    return {"kai.scheduler/queue": queue} if queue else {}


class Ungrouped:
    """No gang scheduler: the start timeout frees the pods of a gang that got only some of them scheduled."""

    name: Final = "none"
    resource: Final = None
    waits: Final = False

    def reserve(self, gang: GangRequest) -> None:
        return None

    def pod_fields(self, group: str, queue: str | None, site: Site) -> PodFields:
        return PodFields()

    def observe(self, raw: Mapping[str, Any]) -> Reservation | None:
        return None

    def report(self, known: Reservation, namespace: str, outcome: AttemptOutcome | None, at: str) -> None:
        return None


_ALL: Final[tuple[GangScheduler, ...]] = (Ungrouped(), Kueue(), Volcano(), Coscheduling(), Kai(), InTree())
SCHEDULERS: Final[Mapping[str, GangScheduler]] = {scheduler.name: scheduler for scheduler in _ALL}
# Those that hold a gang back as a whole. Waiting in their queues costs nothing, so the start timeout of their gangs
# counts from the first pod that has a node.
QUEUEING: Final = tuple(scheduler.name for scheduler in _ALL if scheduler.resource is not None)
