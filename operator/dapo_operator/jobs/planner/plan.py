"""The planner's one entry: the order in which its rules are applied."""

from dapo_core.run.status import DAPOJobStatus
from dapo_operator.jobs.actions import AddFinalizer, CreatePod, CreateToken, DeletePod, Plan, Reserve
from dapo_operator.jobs.dapojob import Job
from dapo_operator.jobs.job_objects import Site
from dapo_operator.jobs.observed import Observed
from dapo_operator.jobs.planner.deletion import clean_up, delete_job, drop_network
from dapo_operator.jobs.planner.draft import Draft
from dapo_operator.jobs.planner.guard_alerts import note_guards
from dapo_operator.jobs.planner.in_place import kept_trainers
from dapo_operator.jobs.planner.nodes import drop_budget
from dapo_operator.jobs.planner.refusals import note_remaining
from dapo_operator.jobs.planner.reservations import release, report_ready
from dapo_operator.jobs.planner.running import run
from dapo_operator.jobs.planner.start import RECOVERABLE, start
from dapo_operator.jobs.planner.status_summary import note_progress, summarize, take_progress
from dapo_operator.jobs.planner.termination import terminate


def plan(job: Job, status: DAPOJobStatus, seen: Observed, now: float, site: Site) -> Plan:
    """What to do about `job` at `now` (Unix seconds). The same arguments always give the same plan; once a plan is
    carried out and nothing else changes, the next plan is empty."""
    draft = Draft(job, status, seen, now, site)
    if job.deleting_since is not None:
        delete_job(draft)
        release(draft)
        note_remaining(draft)
        summarize(draft)
        return draft.plan()
    if not finished(draft):
        note_progress(draft)
        note_guards(draft)
    else:
        # The last step's metrics may arrive after the end.
        take_progress(draft)
    _attempts(draft)
    _delete_strays(draft)
    drop_budget(draft)
    report_ready(draft)
    release(draft)
    if finished(draft):
        drop_network(draft)
    note_remaining(draft)
    summarize(draft)
    if not job.held and any(isinstance(action, CreatePod | CreateToken | Reserve) for action in draft.actions):
        draft.actions.insert(0, AddFinalizer())
    return draft.plan()


def finished(draft: Draft) -> bool:
    """Whether the run is over: it has succeeded, or failed unless a changed spec lets it continue."""
    return draft.holds("Succeeded") or draft.holds("Failed")


def _attempts(draft: Draft) -> None:
    """Move the newest attempt on, or start another."""
    attempt = draft.attempt
    failed = draft.condition("Failed")
    lost = failed is not None and failed.status == "True" and failed.reason not in RECOVERABLE
    if draft.holds("Succeeded") or lost:
        return clean_up(draft)
    if attempt is None or attempt.ended_at is not None:
        start(draft)
    elif attempt.ending_at is not None:
        terminate(draft, attempt)
    else:
        run(draft, attempt)
    if finished(draft):
        clean_up(draft)
    return None


def _delete_strays(draft: Draft) -> None:
    """Delete pods of older attempts: an operator that lost its lease may have created them late. Trainers that stayed
    for the next attempt go when there is none after all."""
    stayed = draft.attempt is not None and draft.attempt.ended_at is not None and bool(draft.attempt.trainers_stay)
    kept = kept_trainers(draft)
    deleted = {action.name for action in draft.actions if isinstance(action, DeletePod)}
    for pod in draft.seen.pods:
        serves = pod in kept if stayed else draft.serves(pod)
        if pod.owned and not serves and pod.name not in deleted and not pod.over:
            draft.delete(pod)
