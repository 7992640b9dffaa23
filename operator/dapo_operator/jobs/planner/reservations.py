"""An attempt's room with its gang scheduler: asked for before its pods, given up when it ends, whoever ended it.

Reservations are compared with the attempts on record at each plan, so those of an attempt that ended while no operator
ran are released as well.
"""

from collections.abc import Iterator
from typing import Final

from dapo_core.jobspec import DAPOJob
from dapo_core.naming import LABEL_ATTEMPT, LABEL_JOB, Role
from dapo_core.run.reasons import ExitCode, Reason
from dapo_operator.jobs.actions import Adopt, Release, ReportOutcome, Reserve
from dapo_operator.jobs.builders.gang_request import reservation
from dapo_operator.jobs.gangs.gang_scheduler import AttemptOutcome, GangScheduler, Reservation
from dapo_operator.jobs.gangs.kueue import POD_FINALIZER, Kueue, placed, with_flavors
from dapo_operator.jobs.gangs.schedulers import SCHEDULERS
from dapo_operator.jobs.job_objects import Object, group_name, owner
from dapo_operator.jobs.observed import Pod
from dapo_operator.jobs.planner.draft import Draft
from dapo_operator.jobs.planner.pod_failures import Ending

READ_AGAIN_SECONDS: Final = 30.0
# A position in a queue changes without any change of the Workload.
POSITION_SECONDS: Final = 60.0


def scheduler_of(draft: Draft) -> GangScheduler:
    """The job's gang scheduler."""
    return SCHEDULERS[draft.policy.gang.scheduler]


def reserved(draft: Draft) -> Reservation | None:
    """The newest attempt's reservation."""
    number = draft.attempt.number if draft.attempt is not None else 0
    return next((each for each in draft.seen.reservations if each.attempt == number), None)


def missing_reservation(draft: Draft, job: DAPOJob, number: int) -> Iterator[Reserve | Adopt]:
    """What asks for the attempt's room, unless it has asked."""
    scheduler = SCHEDULERS[job.spec.run_policy.gang.scheduler]
    if scheduler.resource is None or reserved(draft) is not None or _is_grouped(draft):
        return
    if draft.job.prebuilt is not None and scheduler.waits:
        yield from _adoption(draft, scheduler, draft.job.prebuilt, number)
        return
    body = reservation(job, draft.job.uid, number, draft.site)
    if body is not None:
        yield Reserve(scheduler.name, body)


def _adoption(draft: Draft, scheduler: GangScheduler, name: str, number: int) -> Iterator[Adopt]:
    """Pass the Workload that was made for the job on to its next attempt. One that Kueue has taken back is of no use:
    whoever made it deletes it, and the job with it."""
    known = next((each for each in draft.seen.reservations if each.name == name), None)
    if known is None or not (known.revoked or known.terminating or known.deactivated):
        labels = {LABEL_JOB: draft.job.name, LABEL_ATTEMPT: str(number)}
        metadata = {"labels": labels, "ownerReferences": [owner(draft.job.name, draft.job.uid)]}
        yield Adopt(scheduler.name, name, {"kind": "Workload", "metadata": {"name": name, **metadata}})


def has_room(draft: Draft) -> bool:
    """Whether the attempt's pods may be created."""
    if not scheduler_of(draft).waits or _is_grouped(draft):
        return True
    known = reserved(draft)
    return known is not None and known.admitted and not known.terminating and not unread_flavors(draft)


def unread_flavors(draft: Draft) -> list[str]:
    """The ResourceFlavors of the attempt's admission that could not be read."""
    known = reserved(draft)
    placements = known.placements.values() if known is not None and known.admitted else ()
    return sorted({name for each in placements for name in each.flavors} - draft.seen.flavors.keys())


def admitted_count(draft: Draft, role: Role) -> int | None:
    """How many pods of a role the scheduler gave room to; None: to all that were asked for."""
    known = reserved(draft)
    return known.placements[role].count if known is not None and role in known.placements else None


def placed_pod(draft: Draft, role: Role, pod: Object) -> Object:
    """The pod where the scheduler wants it."""
    known = reserved(draft)
    placement = known.placements.get(role) if known is not None else None
    return pod if placement is None else placed(pod, with_flavors(placement, draft.seen.flavors))


def taken_back(draft: Draft) -> Ending | None:
    """The scheduler, or somebody who deleted or deactivated the reservation, wants the room back."""
    attempt, known = draft.attempt, reserved(draft)
    if _is_grouped(draft):
        if attempt is None or attempt.ready_at is not None or len(draft.pods) >= (attempt.pods or 0):
            return None
        return Ending(Reason.POD_DELETED, "A pod of Kueue's pod group is missing; recreating all pods.")
    if known is None:
        name = next((pod.workload for pod in draft.pods if pod.workload is not None), None)
        return None if name is None else Ending(Reason.PREEMPTED, f"Workload {name} was deleted.")
    if known.terminating and scheduler_of(draft).waits:
        # Whoever keeps it may wait for the pods. Without pods it is asked for again once it is gone.
        return Ending(Reason.PREEMPTED, f"Workload {known.name} was deleted.") if draft.pods else None
    if known.deactivated:
        return Ending(Reason.DEACTIVATED, f"Workload {known.name} was deactivated (spec.active is false).")
    if known.revoked is not None and known.late:
        # As after the operator's own limit: processes that never got ready are at fault, pods that never ran are not.
        ran = bool(draft.pods) and all(pod.started for pod in draft.pods)
        return Ending(Reason.START_TIMEOUT, known.revoked, ExitCode.KILLED if ran else None)
    if known.revoked is not None:
        return Ending(Reason.PREEMPTED, known.revoked)
    if not known.admitted and draft.pods:
        return Ending(Reason.PREEMPTED, f"{known.name} no longer has its quota. {known.message}".rstrip())
    return None


def note_reservation(draft: Draft) -> None:
    """Condition QuotaReserved of a job that waits to be admitted, or was."""
    if not scheduler_of(draft).waits:
        return
    queue = draft.policy.gang.queue
    if _is_grouped(draft):
        # Of an earlier version of the operator: Kueue takes a scheduling gate off each pod.
        gated = any(pod.gated for pod in draft.pods)
        message = f"Waiting for LocalQueue {queue} to admit the pods." if gated else "Kueue admitted the pods."
        reason = Reason.WAITING_FOR_QUOTA if gated else Reason.QUOTA_RESERVED
        draft.set_condition("QuotaReserved", not gated, reason, message)
        return
    known = reserved(draft)
    if known is not None and known.admitted:
        message = f"Kueue admitted Workload {known.name}."
        draft.set_condition("QuotaReserved", True, Reason.QUOTA_RESERVED, message)
    elif known is not None:
        position = draft.seen.queue_position
        place = f" at position {position}" if position is not None else ""
        message = f"Workload {known.name} waits in LocalQueue {queue}{place}. {known.message}".rstrip()
        if position is not None:
            draft.wake(draft.now + POSITION_SECONDS)
        draft.set_condition("QuotaReserved", False, Reason.WAITING_FOR_QUOTA, message)


def report_ready(draft: Draft) -> None:
    """Tell the scheduler once that the attempt's pods got ready: what happens to them later ends the attempt, or is no
    concern of its queue."""
    attempt, known = draft.attempt, reserved(draft)
    if attempt is None or attempt.ready_at is None or attempt.ending_at is not None or known is None:
        return
    if known.admitted and not known.knows_ready:
        body = SCHEDULERS[known.scheduler].report(known, draft.job.namespace, None, attempt.ready_at)
        if body is not None:
            draft.act(ReportOutcome(known.scheduler, body))


def note_waiting(draft: Draft) -> bool:
    """Condition PodsReady while the attempt waits for its room; False when it has it."""
    if (unread := unread_flavors(draft)) and not draft.pods:
        message = (
            f"ResourceFlavor {', '.join(unread)} could not be read (retrying): the operator needs the permission to "
            "get resourceflavors.kueue.x-k8s.io, which are not namespaced."
        )
        draft.set_condition("PodsReady", False, Reason.API_REFUSED, message)
        draft.wake(draft.now + READ_AGAIN_SECONDS)
        return True
    if has_room(draft) and not any(pod.gated for pod in draft.pods):
        return False
    draft.set_condition("PodsReady", False, Reason.WAITING_FOR_QUOTA, "The pods are waiting to be admitted.")
    return True


def release(draft: Draft) -> None:
    """Give up what no live attempt needs."""
    attempt = draft.attempt
    live = attempt.number if attempt is not None and attempt.ended_at is None else None
    for known in draft.seen.reservations:
        if known.name == draft.job.prebuilt:
            # It is that of all attempts, and not the operator's to delete.
            report = _last_report(draft, known) if draft.holds("Succeeded") or draft.holds("Failed") else None
            draft.act(*([report] if report is not None else []))
        elif known.attempt != live:
            draft.act(Release(known.scheduler, known.name, known.uid, _last_report(draft, known)))
    if live is None and draft.condition("QuotaReserved") is not None:
        draft.set_condition("QuotaReserved", False, Reason.QUOTA_RELEASED, "No attempt needs quota.")
    # Kueue keeps pods of its own pod groups until their Workload is gone, which no watch reports: it is not ours.
    kept = {pod.attempt for pod in draft.seen.pods if pod.owned and _is_kept_by_kueue(pod, live)}
    draft.act(*(Release(Kueue.name, group_name(draft.job.name, number), None) for number in sorted(kept)))


def _last_report(draft: Draft, known: Reservation) -> ReportOutcome | None:
    """How the attempt of a reservation ended, if it did by itself: not when it was asked to, or never ran."""
    attempt = next((each for each in draft.status.attempts if each.number == known.attempt), None)
    if attempt is None or attempt.ended_at is None or not known.admitted:
        return None
    if known.revoked is not None or known.deactivated:
        return None
    succeeded = attempt.exit_code == ExitCode.DONE
    if not succeeded and not attempt.counted and not draft.holds("Failed"):
        return None
    outcome = AttemptOutcome(succeeded, attempt.message or "The run is complete.")
    body = SCHEDULERS[known.scheduler].report(known, draft.job.namespace, outcome, attempt.ended_at)
    return ReportOutcome(known.scheduler, body) if body is not None else None


def _is_kept_by_kueue(pod: Pod, live: int | None) -> bool:
    ended = pod.deleting or (pod.over and pod.attempt != live)
    return pod.grouped and POD_FINALIZER in pod.finalizers and ended


def _is_grouped(draft: Draft) -> bool:
    return any(pod.grouped for pod in draft.pods)
