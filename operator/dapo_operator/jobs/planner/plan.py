"""The one entry: what the status should be, and what to do."""

from dapo_core.run.status import DAPOJobStatus
from dapo_operator.jobs.actions import AddFinalizer, CreatePod, CreateToken, Plan
from dapo_operator.jobs.builders.site import Site
from dapo_operator.jobs.job import Job
from dapo_operator.jobs.observed import Observed
from dapo_operator.jobs.planner.conditions import find
from dapo_operator.jobs.planner.draft import Draft
from dapo_operator.jobs.planner.ending import drain
from dapo_operator.jobs.planner.leaving import leave, rest
from dapo_operator.jobs.planner.living import living
from dapo_operator.jobs.planner.report import note_guards, note_progress, summarise, take_progress
from dapo_operator.jobs.planner.starting import RECOVERABLE, between


def plan(job: Job, status: DAPOJobStatus, seen: Observed, now: float, site: Site) -> Plan:
    """What to do about `job` at `now` (Unix seconds). The same arguments always give the same plan, and a plan that
    is carried out and changes nothing of what is seen gives an empty one."""
    draft = Draft(job, status, seen, now, site)
    if job.deleting_since is not None:
        leave(draft)
        summarise(draft)
        return draft.plan()
    if not finished(draft):
        note_progress(draft)
        note_guards(draft)
    else:
        # The last step's metrics may arrive after the end.
        take_progress(draft)
    _life(draft)
    _strays(draft)
    summarise(draft)
    if not job.held and any(isinstance(action, CreatePod | CreateToken) for action in draft.actions):
        draft.actions.insert(0, AddFinalizer())
    return draft.plan()


def finished(draft: Draft) -> bool:
    """Whether the run is over for good."""
    if draft.holds("Succeeded"):
        return True
    failed = find(draft.status.conditions, "Failed")
    return failed is not None and failed.status == "True" and failed.reason not in RECOVERABLE


def _life(draft: Draft) -> None:
    attempt = draft.attempt
    if finished(draft):
        rest(draft)
    elif attempt is None or attempt.ended_at is not None:
        between(draft)
    elif attempt.ending_at is not None:
        drain(draft, attempt)
    else:
        living(draft, attempt)
    if finished(draft):
        rest(draft)


def _strays(draft: Draft) -> None:
    """Pods of an attempt that is not the newest: an operator that lost its lease may have made them late."""
    number = draft.attempt.number if draft.attempt else 0
    told = {action.name for action in draft.actions if hasattr(action, "name")}
    for pod in draft.seen.pods:
        if pod.owned and pod.attempt != number and pod.name not in told and not pod.over:
            draft.delete(pod)
