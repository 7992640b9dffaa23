"""Whether the job may hold pods now: spec.suspend, whoever else suspended it, and its room in a queue."""

from typing import Final

from dapo_core.run.reasons import Reason
from dapo_operator.jobs.planner.draft import Draft
from dapo_operator.jobs.planner.pod_failures import Ending
from dapo_operator.jobs.planner.reservations import taken_back

HELD_REASONS: Final = (Reason.SUSPENDED_BY_GUARD, Reason.SUSPENDED_BY_SAMPLING, Reason.DEACTIVATED)


def held_by(draft: Draft) -> tuple[str, str] | None:
    """Reason and message of condition Suspended when the job must not run now; None when it may."""
    if draft.job.suspended:
        return Reason.SUSPENDED_BY_USER, "spec.suspend is true. Set it to false to resume from the newest checkpoint."
    suspended = draft.condition("Suspended")
    if suspended is None or suspended.status != "True" or suspended.reason not in HELD_REASONS:
        return None
    return None if draft.user_resumed else (suspended.reason, suspended.message)


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
    return taken_back(draft)
