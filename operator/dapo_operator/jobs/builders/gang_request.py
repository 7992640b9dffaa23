"""What an attempt asks its gang scheduler for: room for its pods, and the sum of what they request. Pure."""

import math
from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Any

from dapo_core.jobspec import DAPOJob
from dapo_core.quantity import amount
from dapo_operator.jobs.builders.pods import pod
from dapo_operator.jobs.gangs.gang_scheduler import GangRequest, PodSet
from dapo_operator.jobs.gangs.kueue import PRIORITY_LABEL
from dapo_operator.jobs.gangs.schedulers import SCHEDULERS
from dapo_operator.jobs.job_objects import Object, Site


def reservation(job: DAPOJob, uid: str, attempt: int, site: Site) -> Object | None:
    """The object with which the attempt reserves room for its pods; None when its scheduler has none."""
    policy, layout = job.spec.run_policy, job.spec.topology.layout
    scheduler = SCHEDULERS[policy.gang.scheduler]
    if scheduler.resource is None:
        return None
    pod_sets = tuple(
        PodSet(role, count, layout.required_pods[role], pod(job, uid, "", role, attempt, 0, site))
        for role, count in layout.pods.items()
        if count
    )
    gang = GangRequest(
        job.metadata.name,
        job.metadata.namespace,
        uid,
        attempt,
        policy.gang.queue,
        pod_sets,
        _resources(pod_sets),
        policy.priority_class_name,
        job.metadata.labels.get(PRIORITY_LABEL),
        policy.start_timeout_seconds,
    )
    return scheduler.reserve(gang)


def _resources(pod_sets: tuple[PodSet, ...]) -> dict[str, str]:
    """The sum of the requests of all required pods; empty when a template has an invalid quantity, which the API server
    then reports for its pod."""
    try:
        total = sum_of(requests for pods in pod_sets for requests in [requests_of(pods.pod["spec"])] * pods.required)
    except ValueError:
        return {}
    return {name: quantity_text(number) for name, number in sorted(total.items())}


Amounts = dict[str, Fraction]


def quantity_text(number: Fraction) -> str:
    """The number as a quantity: whole, or in thousandths, rounded up."""
    return str(number.numerator) if number.denominator == 1 else f"{math.ceil(number * 1000)}m"


def sum_of(amounts: Iterable[Amounts]) -> Amounts:
    """The sum, by resource."""
    whole: Amounts = {}
    for part in amounts:
        for name, number in part.items():
            whole[name] = whole.get(name, Fraction(0)) + number
    return whole


def requests_of(spec: Mapping[str, Any]) -> Amounts:
    """What the scheduler counts for a pod: the sum of its containers and sidecars, or the largest init container if
    that is more. Raises ValueError for an invalid quantity."""
    init = spec.get("initContainers") or []
    sidecars = [container for container in init if container.get("restartPolicy") == "Always"]
    counted = sum_of(_container(container) for container in (*spec["containers"], *sidecars))
    for alone in (_container(container) for container in init if container not in sidecars):
        counted |= {name: max(number, counted.get(name, Fraction(0))) for name, number in alone.items()}
    return counted


def _container(container: Mapping[str, Any]) -> Amounts:
    """Requests by resource; a limit without a request counts as one."""
    resources = container.get("resources")
    limits, asked = (_mapping(_mapping(resources).get(kind)) for kind in ("limits", "requests"))
    return {name: amount(quantity) for name, quantity in {**limits, **asked}.items()}


def _mapping(value: object) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ValueError(f"{value} is not a mapping")
    return value
