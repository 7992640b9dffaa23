"""A job that MultiKueue runs in another cluster (`spec.managedBy: kueue.x-k8s.io/multikueue`).

All that the job's own cluster has of it is a Workload, by which Kueue chooses the other one: there it makes copies of
the Workload and of the DAPOJob, whose status it copies back. Kueue makes the Workload for the kinds of jobs that it
knows; for a DAPOJob it leaves that to the operator.
"""

from collections.abc import Sequence
from typing import Final

from dapo_core.run.reasons import Reason
from dapo_core.run.status import DAPOJobStatus
from dapo_operator.jobs.actions import Event, Plan, Release, Reserve
from dapo_operator.jobs.builders.gang_request import reservation
from dapo_operator.jobs.dapojob import Job
from dapo_operator.jobs.gangs.gang_scheduler import Reservation
from dapo_operator.jobs.gangs.kueue import Kueue
from dapo_operator.jobs.job_objects import Site

# There is one Workload at a time, whatever the attempts in the other cluster. Its name stays the same: Kueue watches
# for the end of the old copy of the job, whose name that is, too, and makes the new one then.
_NUMBER: Final = 1


def plan_dispatch(job: Job, status: DAPOJobStatus, known: Sequence[Reservation], site: Site) -> Plan:
    """What to do about the job's Workload; its status, which is another cluster's, is never changed.

    It is asked for while the job is to run, and released while `spec.suspend` is true, and when Kueue has taken it
    back, to try again with whatever cluster. One that was deactivated stays as it is, and so does that of a job that is
    over: Kueue has written into it how. A deleted job's is deleted by Kubernetes.
    """
    mine = [each for each in known if each.scheduler == Kueue.name and not each.terminating]
    if not job.is_dispatched or job.deleting_since is not None or _is_over(status):
        return Plan(status)
    if job.suspended:
        return Plan(status, tuple(_release(each) for each in mine))
    if mine:
        return Plan(status, tuple(_release(each) for each in mine if each.revoked is not None and not each.deactivated))
    if job.parsed is None:
        message = " ".join(problem.message for problem in job.problems)
        return Plan(status, events=(Event("Warning", Reason.INVALID_SPEC, message),))
    if known or job.spec.run_policy.gang.scheduler != Kueue.name:
        return Plan(status)
    body = reservation(job.parsed, job.uid, _NUMBER, site)
    return Plan(status, (Reserve(Kueue.name, body),) if body is not None else ())


def _is_over(status: DAPOJobStatus) -> bool:
    return any(each.type in ("Succeeded", "Failed") and each.status == "True" for each in status.conditions)


def _release(known: Reservation) -> Release:
    return Release(known.scheduler, known.name, known.uid)
