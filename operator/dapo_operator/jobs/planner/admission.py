"""Whether the job may hold pods now: spec.suspend, a guard or the sampler that suspended it, and quota."""

from typing import Final

from dapo_core.run.reasons import Reason
from dapo_operator.jobs.planner.draft import Draft
from dapo_operator.jobs.planner.pod_failures import Ending

HELD_REASONS: Final = (Reason.SUSPENDED_BY_GUARD, Reason.SUSPENDED_BY_SAMPLING)


def held_by(draft: Draft) -> tuple[str, str] | None:
    """Reason and message of condition Suspended when the job must not run now; None when it may."""
    if draft.job.suspended:
        return Reason.SUSPENDED_BY_USER, "spec.suspend is true. Set it to false to resume from the newest checkpoint."
    suspended = draft.condition("Suspended")
    if suspended is None or suspended.status != "True" or suspended.reason not in HELD_REASONS:
        return None
    return None if draft.spec_changed_since_stop else (suspended.reason, suspended.message)


def hold(draft: Draft, reason: str, message: str) -> None:
    """Report that the job is suspended and holds no pods."""
    if not draft.holds("Suspended"):
        draft.event("Normal", reason, f"Suspended; all pods are freed. {message}")
    draft.stop("Suspended", reason, message)
    draft.set_condition("PodsReady", False, reason, "The job is suspended.")
    draft.set_condition("Training", False, reason, "The job is suspended.")
    draft.change(next_attempt_at=None)


def revoked(draft: Draft) -> Ending | None:
    """The running attempt has to give its pods back."""
    if (held := held_by(draft)) is not None:
        return Ending(held[0], "Suspended by spec.suspend.")
    if draft.job.managed_by is not None and not draft.holds("QuotaReserved"):
        return Ending(Reason.PREEMPTED, f"{draft.job.managed_by} revoked the job's quota.")
    return None


def waits_for_quota(draft: Draft) -> bool:
    """Whether the controller of spec.managedBy has not admitted the job yet."""
    if draft.job.managed_by is None or draft.holds("QuotaReserved"):
        return False
    if draft.condition("QuotaReserved") is None:
        message = f"{draft.job.managed_by} (spec.managedBy) sets this condition to True when the job may start."
        draft.set_condition("QuotaReserved", False, Reason.WAITING_FOR_QUOTA, message)
    draft.set_condition("PodsReady", False, Reason.WAITING_FOR_QUOTA, f"Waiting for {draft.job.managed_by}.")
    return True


def note_kueue(draft: Draft) -> None:
    """Condition QuotaReserved of a job whose pods Kueue admits: it takes a scheduling gate off each."""
    pods, gang = draft.pods, draft.policy.gang
    if gang.scheduler != "kueue" or draft.job.managed_by is not None or not pods:
        return
    if any(pod.gated for pod in pods):
        message = f"Waiting for Kueue's LocalQueue {gang.queue} to admit the pods."
        draft.set_condition("QuotaReserved", False, Reason.WAITING_FOR_QUOTA, message)
    else:
        draft.set_condition("QuotaReserved", True, Reason.QUOTA_RESERVED, "Kueue admitted the pods.")
