"""An attempt that lives: whether it may go on, and what it lacks."""

from typing import Final

from dapo_core.jobspec import DAPOJobSpec
from dapo_core.run.deadlines import Deadline, active_deadline, stall_deadline, start_deadline
from dapo_core.run.guards import Alert
from dapo_core.run.reasons import ExitCode, Reason
from dapo_core.run.status import Attempt
from dapo_operator.jobs.observed import Pod, Refusal
from dapo_operator.jobs.planner.conditions import find
from dapo_operator.jobs.planner.draft import Draft
from dapo_operator.jobs.planner.ending import begin
from dapo_operator.jobs.planner.faults import Ending, head_end, head_of, head_taken, trouble_of, worker_end
from dapo_operator.jobs.planner.starting import create_missing, held_by, missing_support, was_refused_lately
from dapo_operator.kube.clock import age, seconds, stamp

# Schedulers that hold a gang back as a whole: waiting in their queues costs nothing, so the deadline starts later.
_QUEUEING: Final = ("volcano", "coscheduling", "kueue")


def living(draft: Draft, attempt: Attempt) -> None:
    """End the attempt if it has to, else give it what it lacks."""
    ending = _ending(draft, attempt)
    if ending is not None:
        return begin(draft, ending)
    _accept(draft, attempt)
    _note_nodes(draft, attempt)
    if attempt.ready_at is None:
        return _gather(draft, attempt)
    return _train(draft, attempt)


def _ending(draft: Draft, attempt: Attempt) -> Ending | None:
    """Why the attempt has to end, the weightiest reason first."""
    pods, started = draft.ends, attempt.ready_at is not None
    spec = draft.job.spec if draft.job.job else None
    return (
        head_end(pods)
        or _wanted(draft)
        or head_taken(pods, started)
        or worker_end(pods, spec, started)
        or (_missing(draft, attempt) if started else _changed(draft, attempt) or _refused(draft))
        or _overdue(draft, attempt)
        or _alerted(draft, attempt)
    )


def _wanted(draft: Draft) -> Ending | None:
    """Somebody wants the pods back."""
    if (held := held_by(draft)) is not None:
        return Ending(held[0], "Suspended by spec.suspend.")
    reserved = find(draft.status.conditions, "QuotaReserved")
    if draft.job.managed_by is not None and (reserved is None or reserved.status != "True"):
        return Ending(Reason.PREEMPTED, f"{draft.job.managed_by} took the job's quota back.")
    return None


def _missing(draft: Draft, attempt: Attempt) -> Ending | None:
    """A pod of a running attempt that is simply gone: whatever its end was, nobody can say."""
    pods = draft.pods
    if len(pods) >= (attempt.pods or 0):
        return None
    if head_of(pods) is None:
        return Ending(Reason.POD_DELETED, "The head pod is gone, and nothing says why.", role="head")
    count = (attempt.pods or 0) - len(pods)
    return Ending(Reason.POD_DELETED, f"{count} of {attempt.pods} pods are gone, and nothing says why.")


def _changed(draft: Draft, attempt: Attempt) -> Ending | None:
    """Pods that do not run yet are made anew when the spec now wants other ones."""
    if draft.job.job is None:
        return Ending(Reason.SPEC_CHANGED, "The spec was changed and can not be used any more.")
    if attempt.shape == draft.job.shape:
        return None
    return Ending(Reason.SPEC_CHANGED, "The spec was changed while the pods were starting: they are made anew.")


def _refused(draft: Draft) -> Ending | None:
    refusal = _refusal(draft)
    if refusal is None or refusal.kind != "permanent":
        return None
    return Ending(Reason.POD_REFUSED, f"The API server does not take {refusal.what}: {refusal.message}")


def _overdue(draft: Draft, attempt: Attempt) -> Ending | None:
    deadline = active_deadline(draft.policy, seconds(draft.status.started_at))
    if deadline is not None and _passed(draft, deadline):
        return Ending(deadline.reason, deadline.message)
    return _late_start(draft, attempt) if attempt.ready_at is None else _stalled(draft, attempt)


def _passed(draft: Draft, deadline: Deadline) -> bool:
    """Whether the deadline has passed; one that lies ahead wakes the job."""
    if draft.now >= deadline.at:
        return True
    draft.wake(deadline.at)
    return False


def _late_start(draft: Draft, attempt: Attempt) -> Ending | None:
    since = seconds(attempt.scheduled_at if draft.policy.gang.scheduler in _QUEUEING else attempt.started_at)
    if since is None:
        return None
    pods = draft.pods
    unready = sum(not pod.ready for pod in pods)
    deadline = start_deadline(draft.policy, since, f"{unready} of {len(pods)} pods were not ready")
    if not _passed(draft, deadline):
        return None
    trouble, refusal = trouble_of(pods), _refusal(draft)
    why = f" {trouble[1]}" if trouble else f" {refusal.message}" if refusal else ""
    # Pods that never ran were waiting for room in the cluster; processes that never got ready are at fault.
    ran = bool(pods) and all(pod.started for pod in pods)
    return Ending(deadline.reason, f"{deadline.message}{why}", ExitCode.KILLED if ran else None)


def _refusal(draft: Draft) -> Refusal | None:
    """What the API server said last to this very attempt."""
    refusal, attempt = draft.seen.refusal, draft.attempt
    return refusal if refusal is not None and attempt is not None and refusal.attempt == attempt.number else None


def _stalled(draft: Draft, attempt: Attempt) -> Ending | None:
    """No step for too long. While the metadata store cannot be read, nobody knows, and nothing is ended."""
    if draft.seen.store != "ok":
        return None
    known = draft.status.progress
    step_at = seconds(known.step_at) if known is not None else None
    since = max(seconds(attempt.ready_at) or 0.0, step_at or 0.0, draft.seen.store_since)
    deadline = stall_deadline(draft.policy, since, known.step if known is not None else None)
    return Ending(deadline.reason, deadline.message, ExitCode.KILLED) if _passed(draft, deadline) else None


def _alerted(draft: Draft, attempt: Attempt) -> Ending | None:
    """A guard that acts. A resumed attempt gets as many steps as the guard asks for before it is judged again."""
    if draft.job.job is None:
        return None
    for alert in draft.seen.alerts:
        if alert.action != "Warn" and alert.step >= _judged_from(draft.job.spec, attempt, alert):
            return Ending(alert.rule, alert.message, ExitCode.GUARD)
    return None


def _judged_from(spec: DAPOJobSpec, attempt: Attempt, alert: Alert) -> int:
    patience = next((guard.for_steps for guard in spec.guards if guard.rule == alert.rule), 1)
    return (attempt.from_step or 0) + patience


def _accept(draft: Draft, attempt: Attempt) -> None:
    if draft.job.job is None:
        message = " ".join(problem.message for problem in draft.job.problems)
        draft.say("SpecAccepted", False, Reason.INVALID_SPEC, f"{message} The running attempt goes on as it was.")
    elif attempt.shape != draft.job.shape:
        message = f"Attempt {attempt.number} goes on as it is; changed pods come with the next one."
        draft.say("SpecAccepted", True, Reason.APPLIES_NEXT_ATTEMPT, message)
    else:
        draft.say("SpecAccepted", True, Reason.SPEC_ACCEPTED, "The spec can be used.")


def _note_nodes(draft: Draft, attempt: Attempt) -> None:
    """When the first pod of a gang that queued had a node: from then on a part of it keeps others out."""
    pods, queues = draft.pods, draft.policy.gang.scheduler in _QUEUEING
    if queues and attempt.scheduled_at is None and any(pod.scheduled for pod in pods):
        draft.change_attempt(scheduled_at=stamp(draft.now))
    if draft.policy.gang.scheduler == "kueue" and draft.job.managed_by is None and pods:
        if any(pod.gated for pod in pods):
            message = f"Waiting for the LocalQueue {draft.policy.gang.queue} of Kueue to admit the pods."
            draft.say("QuotaReserved", False, Reason.WAITING_FOR_QUOTA, message)
        else:
            draft.say("QuotaReserved", True, Reason.QUOTA_RESERVED, "Kueue admitted the pods.")


def _gather(draft: Draft, attempt: Attempt) -> None:
    job, pods = draft.job.job, draft.pods
    if job is None:
        return
    wanted = job.spec.topology.layout.pod_count
    ready = sum(pod.ready for pod in pods)
    if ready == wanted and len(pods) == wanted:
        _all_ready(draft, attempt, wanted)
        return
    create_missing(draft, job)
    refusal, trouble = _refusal(draft), trouble_of(pods)
    if refusal is not None:
        reason = _REFUSALS.get(refusal.kind, Reason.API_REFUSED)
        _tell_trouble(draft, reason, f"{refusal.what} was refused and is tried again: {refusal.message}")
    elif trouble is not None:
        homeless = _homeless(pods, wanted) if trouble[0] == Reason.UNSCHEDULABLE else ""
        _tell_trouble(draft, trouble[0], f"{homeless}{trouble[1]}")
    elif any(pod.gated for pod in pods):
        draft.say("PodsReady", False, Reason.WAITING_FOR_QUOTA, "The pods wait to be admitted.")
    else:
        draft.say("PodsReady", False, Reason.STARTING, f"Attempt {attempt.number} is starting.")


_REFUSALS: Final = {
    "quota": Reason.QUOTA_EXCEEDED,
    "name": Reason.NAME_TAKEN,
    "gang": Reason.GANG_SCHEDULER_MISSING,
}


def _tell_trouble(draft: Draft, reason: str, message: str) -> None:
    known = find(draft.status.conditions, "PodsReady")
    if known is None or known.reason != reason:
        draft.event("Warning", reason, message)
    draft.say("PodsReady", False, reason, message)


def _homeless(pods: list[Pod], wanted: int) -> str:
    count = sum(not pod.scheduled for pod in pods)
    return f"{count} of {wanted} pods {'has' if count == 1 else 'have'} no node; " if count else ""


def _all_ready(draft: Draft, attempt: Attempt, count: int) -> None:
    took = int(age(attempt.started_at, draft.now))
    draft.change_attempt(ready_at=stamp(draft.now))
    draft.say("PodsReady", True, Reason.PODS_READY, f"All {count} pods are ready.")
    draft.say("Training", True, Reason.TRAINING, f"Attempt {attempt.number} is at work.")
    draft.unsay("Stalled", Reason.TRAINING, "A new attempt is at work.")
    draft.event("Normal", Reason.PODS_READY, f"All {count} pods of attempt {attempt.number} are ready after {took} s.")


def _train(draft: Draft, attempt: Attempt) -> None:
    """All pods were ready once; support that somebody removed is put back, as it was or as it would be now."""
    job, refused = draft.job.job, ""
    if job is not None and attempt.shape == draft.job.shape:
        lacking = list(missing_support(draft, job, attempt.number, changed=False))
        if lacking and not was_refused_lately(draft, attempt.number):
            draft.act(*lacking)
        if lacking and (refusal := _refusal(draft)) is not None:
            refused = f" But {refusal.what} was refused and is tried again: {refusal.message}"
    unready = [pod.name for pod in draft.pods if not pod.ready]
    if unready:
        draft.say(
            "PodsReady", False, Reason.CONTAINER_WAITING, f"Not ready any more: {', '.join(sorted(unready)[:3])}."
        )
    else:
        draft.say("PodsReady", True, Reason.PODS_READY, f"All {len(draft.pods)} pods are ready.{refused}")
