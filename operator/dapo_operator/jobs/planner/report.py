"""What a status says beside the attempt's life: progress, guards, phase."""

from collections.abc import Sequence
from typing import Final

from dapo_core.naming import LABEL_JOB, LABEL_ROLE
from dapo_core.run.guards import Alert
from dapo_core.run.reasons import Reason
from dapo_core.run.status import ConditionType
from dapo_operator.jobs.planner.conditions import find
from dapo_operator.jobs.planner.draft import Draft
from dapo_operator.kube.clock import stamp


def note_progress(draft: Draft) -> None:
    """Take over what the metadata store says, and say when it says nothing."""
    seen = draft.seen
    match seen.store:
        case "none":
            message = "The operator has no metadata store: progress, stalls and guards are not watched."
            draft.say("ProgressKnown", False, Reason.NO_METADATA_STORE, message)
        case "down":
            message = "The metadata store can not be read: progress, stalls and guards wait for it; training goes on."
            draft.say("ProgressKnown", False, Reason.METADATA_UNREACHABLE, message)
        case "ok":
            draft.say("ProgressKnown", True, Reason.PROGRESS_READ, "Progress is read from the metadata store.")
    take_progress(draft)
    if seen.checkpoint is not None:
        draft.change(checkpoint=seen.checkpoint)


def take_progress(draft: Draft) -> None:
    """The last values, and when the operator saw their step."""
    seen, known = draft.seen, draft.status.progress
    if seen.progress is not None:
        moved = known is None or known.step != seen.progress.step
        step_at = stamp(draft.now) if moved and seen.progress.step is not None else known.step_at if known else None
        draft.change(progress=seen.progress.model_copy(update={"step_at": step_at}))


def note_guards(draft: Draft) -> None:
    """Condition Degraded: the guards that hold."""
    if draft.seen.store != "ok":
        return
    alerts = draft.seen.alerts
    known = find(draft.status.conditions, "Degraded")
    if alerts:
        reason = alerts[0].rule if len(alerts) == 1 else Reason.GUARD
        # The numbers of the moment the rule began to hold: each step's would be a status write a step.
        message = " ".join(sorted(f"{alert.rule} holds since step {alert.since}." for alert in alerts))
        for alert in _new(alerts, known.message if known is not None and known.status == "True" else ""):
            draft.event("Warning", alert.rule, alert.message)
        draft.say("Degraded", True, reason, message)
    elif known is not None:
        if known.status == "True":
            draft.event("Normal", Reason.HEALTHY, "No guard holds any more.")
        draft.say("Degraded", False, Reason.HEALTHY, "No guard holds.")


def _new(alerts: Sequence[Alert], told: str) -> list[Alert]:
    return [alert for alert in alerts if f"{alert.rule} holds since" not in told]


def summarise(draft: Draft) -> None:
    """The rest of the status, once all conditions are set."""
    rollouts = [pod for pod in draft.pods if pod.role == "rollout" and not pod.finished]
    url = f"{draft.site.dashboard_url}/run?run={draft.job.run_id}" if draft.site.dashboard_url else None
    draft.change(
        observed_generation=draft.job.generation,
        phase=phase(draft),
        run_id=draft.job.run_id,
        rollout_replicas=len(rollouts),
        rollout_selector=f"{LABEL_JOB}={draft.job.name},{LABEL_ROLE}=rollout",
        restarts_counted=draft.status.restarts_counted or 0,
        dashboard_url=url,
    )


def phase(draft: Draft) -> str:
    """The word of the STATUS column."""
    attempt = draft.attempt
    if draft.job.deleting_since is not None:
        return "Deleting"
    for kind in _ENDS:
        if draft.holds(kind):
            return kind
    if attempt is not None and attempt.ending_at is not None and attempt.ended_at is None:
        return "Suspending" if attempt.reason == Reason.SUSPENDED_BY_USER else "Stopping"
    if draft.holds("Suspended"):
        return "Suspended"
    if attempt is None or attempt.ended_at is not None:
        return "Restarting" if attempt is not None else "Pending"
    if attempt.ready_at is not None:
        return "Degraded" if draft.holds("Degraded") else "Training"
    pods_ready = find(draft.status.conditions, "PodsReady")
    waiting = pods_ready is not None and pods_ready.reason in (Reason.UNSCHEDULABLE, Reason.WAITING_FOR_QUOTA)
    return "Pending" if waiting else "Starting"


_ENDS: Final[tuple[ConditionType, ...]] = ("Failed", "Succeeded")
