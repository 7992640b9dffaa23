"""All of a job's pods or none: what each gang scheduler wants to see."""

from typing import Any, Final

from dapo_core.jobspec import DAPOJobSpec
from dapo_operator.jobs.builders.common import Object, group_name, support
from dapo_operator.jobs.builders.site import Site

VOLCANO: Final = "volcano"
COSCHEDULING: Final = "coscheduling"
KUEUE: Final = "kueue"
NONE: Final = "none"
# The pod groups' API groups, by scheduler.
POD_GROUPS: Final = {VOLCANO: "scheduling.volcano.sh/v1beta1", COSCHEDULING: "scheduling.x-k8s.io/v1alpha1"}


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
    """The PodGroup of an attempt, where its scheduler has such a thing. `resources`: what all its pods ask for."""
    gang = spec.run_policy.gang
    if gang.scheduler not in POD_GROUPS:
        return None
    content: dict[str, Any] = {"minMember": spec.topology.layout.pod_count}
    content |= {"minResources": resources} if resources else {}
    if gang.scheduler == VOLCANO:
        content |= {"queue": gang.queue} if gang.queue else {}
        if spec.run_policy.priority_class_name:
            content["priorityClassName"] = spec.run_policy.priority_class_name
    else:
        content["scheduleTimeoutSeconds"] = min(spec.run_policy.start_timeout_seconds, 3600)
    api_version = POD_GROUPS[gang.scheduler]
    return support(api_version, "PodGroup", group_name(job, attempt), namespace, job, uid, spec=content)
