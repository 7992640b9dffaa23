"""Schedulers with a PodGroup each: Volcano, the coscheduling plugin, KAI, and Kubernetes' own. Pods are created at
once, and their scheduler holds them back until all fit."""

from collections.abc import Mapping
from typing import Any, Final

from dapo_operator.jobs.builders.common import Object, Site
from dapo_operator.jobs.gangs.contract import Gang, PodFields, Reservation, reservation_of
from dapo_operator.kube.objects import Resource

_KIND: Final = "PodGroup"
# The longest that the coscheduling plugin lets pods wait for the rest of their group.
_LONGEST_WAIT_SECONDS: Final = 3600


class Volcano:
    """Volcano 1.9 and later. A group that is not deleted reserves its resources again once its pods are gone."""

    name: Final = "volcano"
    resource: Final = Resource("scheduling.volcano.sh/v1beta1", "podgroups")
    waits: Final = False

    def reserve(self, gang: Gang) -> Object:
        content: dict[str, Any] = {"minMember": gang.required_pods, **_minimum(gang)}
        content |= {"queue": gang.queue} if gang.queue else {}
        content |= {"priorityClassName": gang.priority_class} if gang.priority_class else {}
        return gang.object(self.resource.api_version, _KIND, spec=content)

    def pod_fields(self, group: str, queue: str | None, site: Site) -> PodFields:
        return PodFields(annotations={"scheduling.k8s.io/group-name": group}, spec={"schedulerName": "volcano"})

    def observe(self, raw: Mapping[str, Any]) -> Reservation | None:
        return reservation_of(self.name, raw)


class Coscheduling:
    """The coscheduling plugin of sigs.k8s.io/scheduler-plugins."""

    name: Final = "coscheduling"
    resource: Final = Resource("scheduling.x-k8s.io/v1alpha1", "podgroups")
    waits: Final = False

    def reserve(self, gang: Gang) -> Object:
        wait = min(gang.start_timeout_seconds, _LONGEST_WAIT_SECONDS)
        content = {"minMember": gang.required_pods, **_minimum(gang), "scheduleTimeoutSeconds": wait}
        return gang.object(self.resource.api_version, _KIND, spec=content)

    def pod_fields(self, group: str, queue: str | None, site: Site) -> PodFields:
        return PodFields({"scheduling.x-k8s.io/pod-group": group}, spec={"schedulerName": site.coscheduler})

    def observe(self, raw: Mapping[str, Any]) -> Reservation | None:
        return reservation_of(self.name, raw)


class Kai:
    """KAI. Its pod grouper would make a group of each pod, since it does not know DAPOJobs, so it is told to pass."""

    name: Final = "kai"
    resource: Final = Resource("scheduling.run.ai/v2alpha2", "podgroups")
    waits: Final = False

    def reserve(self, gang: Gang) -> Object:
        content: dict[str, Any] = {"minMember": gang.required_pods}
        content |= {"queue": gang.queue} if gang.queue else {}
        content |= {"priorityClassName": gang.priority_class} if gang.priority_class else {}
        body = gang.object(self.resource.api_version, _KIND, spec=content)
        body["metadata"]["labels"] |= _kai_queue(gang.queue)
        return body

    def pod_fields(self, group: str, queue: str | None, site: Site) -> PodFields:
        annotations = {"pod-group-name": group, "kai.scheduler/skip-podgrouper": "true"}
        return PodFields(_kai_queue(queue), annotations, {"schedulerName": "kai-scheduler"})

    def observe(self, raw: Mapping[str, Any]) -> Reservation | None:
        return reservation_of(self.name, raw)


class InTree:
    """Kubernetes' own gang scheduling, where the API server serves scheduling.k8s.io/v1beta1: kube-scheduler."""

    name: Final = "kubernetes"
    resource: Final = Resource("scheduling.k8s.io/v1beta1", "podgroups")
    waits: Final = False

    def reserve(self, gang: Gang) -> Object:
        content: dict[str, Any] = {
            "schedulingPolicy": {"gang": {"minCount": gang.required_pods}},
            # The loss of one pod ends the attempt: whoever preempts takes all.
            "disruptionMode": {"all": {}},
        }
        content |= {"priorityClassName": gang.priority_class} if gang.priority_class else {}
        return gang.object(self.resource.api_version, _KIND, spec=content)

    def pod_fields(self, group: str, queue: str | None, site: Site) -> PodFields:
        return PodFields(spec={"schedulingGroup": {"podGroupName": group}})

    def observe(self, raw: Mapping[str, Any]) -> Reservation | None:
        return reservation_of(self.name, raw)


def _minimum(gang: Gang) -> dict[str, Any]:
    return {"minResources": dict(gang.resources)} if gang.resources else {}


def _kai_queue(queue: str | None) -> dict[str, str]:
    return {"kai.scheduler/queue": queue} if queue else {}
