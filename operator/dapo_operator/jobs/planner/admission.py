"""Whether the job may hold pods now: spec.suspend, a guard that suspended it, its room in a queue, and the run that
spec.runId names: one of its own namespace, which no other job trains."""

from typing import Final

from dapo_core.run.reasons import Reason
from dapo_operator.jobs.planner.draft import Draft
from dapo_operator.jobs.planner.pod_failures import Ending
from dapo_operator.jobs.planner.reservations import taken_back

HELD_REASONS: Final = (Reason.SUSPENDED_BY_GUARD, Reason.SUSPENDED_BY_SAMPLING, Reason.DEACTIVATED)
RUN_CHECK_SECONDS: Final = 30.0


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


def may_use_run(draft: Draft) -> bool:
    """Whether the run that the spec names can be continued now. Otherwise a condition says why not."""
    run, seen = draft.job.named_run, draft.seen
    if seen.run_pods:
        message = (
            f"Waiting until pod {seen.run_pods[0]} is gone ({len(seen.run_pods)} in all): another DAPOJob is training "
            f"run {draft.job.run_id}. Suspend or delete that job."
        )
        draft.set_condition("PodsReady", False, Reason.RUN_IN_USE, message)
        draft.wake(draft.now + RUN_CHECK_SECONDS)
        return False
    if run is None:
        return True
    if not seen.run_known:
        message = f"Waiting for the metadata store, which knows the attempts and checkpoints of run {run}."
        draft.set_condition("PodsReady", False, Reason.METADATA_UNREACHABLE, message)
        return False
    if seen.run_namespace not in (None, draft.job.namespace):
        message = f"spec.runId: {run} is a run of another namespace; create the job with another runId or none."
        draft.set_condition("SpecAccepted", False, Reason.INVALID_SPEC, message)
        draft.stop("Failed", Reason.INVALID_SPEC, message)
        return False
    return True
