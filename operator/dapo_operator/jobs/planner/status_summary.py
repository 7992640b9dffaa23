"""What the status says besides conditions and attempts: progress, phase and counts."""

from typing import Final

from dapo_core.naming import LABEL_JOB, LABEL_ROLE
from dapo_core.run.reasons import Reason
from dapo_core.run.status import Condition, ConditionType
from dapo_operator.jobs.planner.draft import Draft
from dapo_operator.jobs.planner.rollout_lives import live_rollouts, wanted_rollouts
from dapo_operator.kube.objects import timestamp

_FINISHED: Final[tuple[ConditionType, ...]] = ("Failed", "Succeeded")


def note_progress(draft: Draft) -> None:
    """Progress and condition ProgressKnown, from the metadata store."""
    seen = draft.seen
    match seen.store:
        case "none":
            message = "The operator has no metadata store: progress, stalls and guards are not watched."
            draft.set_condition("ProgressKnown", False, Reason.NO_METADATA_STORE, message)
        case "down" | "readonly" if _is_moment(draft):
            # An outage of the store is not the jobs' fault: a short one costs no status write of each.
            pass
        case "down":
            message = "The metadata store cannot be read. Training continues; stalls and guards are not watched."
            draft.set_condition("ProgressKnown", False, Reason.METADATA_UNREACHABLE, message)
        case "readonly":
            message = (
                "The metadata store can be read but not written: runs cannot report steps. Training continues; stalls "
                "are not watched."
            )
            known = draft.condition("ProgressKnown")
            if known is None or known.reason != Reason.METADATA_READ_ONLY:
                draft.event("Warning", Reason.METADATA_READ_ONLY, message)
            draft.set_condition("ProgressKnown", False, Reason.METADATA_READ_ONLY, message)
        case "ok":
            message = "Progress is read from the metadata store."
            draft.set_condition("ProgressKnown", True, Reason.PROGRESS_READ, message)
    take_progress(draft)
    if seen.checkpoint is not None:
        draft.change(checkpoint=seen.checkpoint)


def _is_moment(draft: Draft) -> bool:
    """Whether the store has failed too shortly ago to say so."""
    known, told_at = draft.condition("ProgressKnown"), draft.seen.store_failed_at + draft.site.status_delay_seconds
    if known is None or known.status != "True" or draft.now >= told_at:
        return False
    draft.wake(told_at)
    return True


def take_progress(draft: Draft) -> None:
    """Copy the last values, and note when the operator saw a new step."""
    seen, known = draft.seen, draft.status.progress
    if seen.progress is not None:
        moved = seen.progress.step is not None and (known is None or known.step != seen.progress.step)
        step_at = (seen.progress.step_at or timestamp(draft.now)) if moved else known.step_at if known else None
        draft.change(progress=seen.progress.model_copy(update={"step_at": step_at}))
    if seen.time is not None:
        draft.change(time=seen.time)


def summarize(draft: Draft) -> None:
    """Phase, counts and links, once all conditions are set."""
    url = f"{draft.site.dashboard_url}/run?run={draft.job.run_id}" if draft.site.dashboard_url else None
    phase = _phase(draft)
    draft.change(
        observed_generation=draft.job.generation,
        conditions=[_observed(draft, condition) for condition in draft.status.conditions],
        phase=phase,
        reason=_reason(draft, phase),
        pods=_pods(draft),
        attempt=draft.attempt.number if draft.attempt is not None else None,
        restarts=_restarts(draft),
        gpus=draft.job.spec.topology.layout.gpus if draft.job.parsed is not None else draft.status.gpus,
        run_id=draft.job.run_id,
        rollout_replicas=len(live_rollouts(draft)),
        rollout_selector=f"{LABEL_JOB}={draft.job.name},{LABEL_ROLE}=rollout",
        restarts_counted=draft.status.restarts_counted or 0,
        dashboard_url=url,
    )


def _observed(draft: Draft, condition: Condition) -> Condition:
    """The condition with the generation of the spec that it was decided on, changed or not: `kubectl wait` ignores a
    condition with an older one."""
    if condition.observed_generation == draft.job.generation:
        return condition
    return condition.model_copy(update={"observed_generation": draft.job.generation})


def _phase(draft: Draft) -> str:
    """The text of the STATUS column."""
    attempt = draft.attempt
    if draft.job.deleting_since is not None:
        return "Deleting"
    for kind in _FINISHED:
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
    pods_ready = draft.condition("PodsReady")
    waiting = pods_ready is not None and pods_ready.reason in (Reason.UNSCHEDULABLE, Reason.WAITING_FOR_QUOTA)
    return "Pending" if waiting else "Starting"


def _reason(draft: Draft, phase: str) -> str | None:
    """The reason of what decides the phase; None where there is nothing to say about it."""
    attempt = draft.attempt
    match phase:
        case "Failed" | "Succeeded" | "Suspended" | "Degraded":
            deciding = draft.condition(phase)
            return deciding.reason if deciding is not None else None
        case "Stopping" | "Suspending" if attempt is not None:
            ready = draft.condition("PodsReady")
            remain = ready is not None and ready.reason == Reason.PODS_REMAIN
            return Reason.PODS_REMAIN if remain else attempt.reason
        case "Restarting" if attempt is not None:
            ready = draft.condition("PodsReady")
            blocked = ready is not None and ready.reason in (Reason.PODS_REMAIN, Reason.NAME_TAKEN)
            return ready.reason if ready is not None and blocked else attempt.reason
        case "Training" | "Starting" | "Pending":
            return _pods_reason(draft)
    return None


def _pods_reason(draft: Draft) -> str | None:
    """Why pods are not ready: a container's own reason, such as ImagePullBackOff, where there is one."""
    ready, degraded = draft.condition("PodsReady"), draft.condition("RolloutsDegraded")
    if ready is not None and ready.status == "True" and degraded is not None and degraded.status == "True":
        return degraded.reason
    if ready is None or ready.status == "True" or ready.reason == Reason.STARTING:
        return None
    waiting = sorted(pod.name for pod in draft.pods if pod.trouble_reason and not pod.ready)
    if ready.reason != Reason.CONTAINER_WAITING or not waiting:
        return ready.reason
    return next(pod.trouble_reason for pod in draft.pods if pod.name == waiting[0])


def _pods(draft: Draft) -> str | None:
    attempt = draft.attempt
    if attempt is None or attempt.ended_at is not None or attempt.pods is None:
        return None
    pods = attempt.pods
    if attempt.core is not None and attempt.rollouts and draft.job.parsed is not None:
        # Rollouts are added and removed while the attempt runs.
        pods = attempt.core + wanted_rollouts(draft, attempt, draft.job.parsed)
    ready = sum(pod.ready for pod in (*draft.core, *live_rollouts(draft)))
    return f"{ready}/{pods}"


def _restarts(draft: Draft) -> str:
    status, counted = draft.status, draft.status.restarts_counted or 0
    total = status.restarts_total
    if total is None:
        total = draft.attempt.number - 1 if draft.attempt is not None else 0
    return str(counted) if total == counted else f"{counted} ({total})"
