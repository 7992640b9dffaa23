"""What an attempt asks its gang scheduler for."""

from dapo_core.jobspec import DAPOJob
from dapo_operator.jobs.builders import quantities
from dapo_operator.jobs.builders.common import Object, Site
from dapo_operator.jobs.builders.pods import pod
from dapo_operator.jobs.gangs.contract import Gang, PodSet
from dapo_operator.jobs.gangs.kueue import PRIORITY_LABEL
from dapo_operator.jobs.gangs.schedulers import SCHEDULERS


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
    gang = Gang(
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
        total = quantities.total(
            requests for pods in pod_sets for requests in [quantities.requests(pods.pod["spec"])] * pods.required
        )
    except ValueError:
        return {}
    return {name: quantities.text(number) for name, number in sorted(total.items())}
