"""The time limits of a running attempt: activeDeadlineSeconds, startTimeoutSeconds, stallTimeoutSeconds, and how long a
pod may be silent."""

from typing import Final

from dapo_core.run.deadlines import Deadline, active_deadline, stall_deadline, start_deadline
from dapo_core.run.reasons import ExitCode, Reason
from dapo_core.run.status import Attempt
from dapo_operator.jobs.gangs.schedulers import QUEUEING
from dapo_operator.jobs.planner.draft import Draft
from dapo_operator.jobs.planner.pod_failures import Ending, trouble_of
from dapo_operator.jobs.planner.refusals import refusal_of
from dapo_operator.jobs.planner.rollouts_ready import lacking_pods, ready_rollouts
from dapo_operator.kube.objects import unix_seconds

# How long a trainer or the head may run without being ready. A trainer is not ready from a minute after the last
# heartbeat of one of its ranks; so a rank has five minutes, as the driver has.
HANG_SECONDS: Final = 240.0
# Pods that a message names.
_NAMED: Final = 3


def timed_out(draft: Draft, attempt: Attempt) -> Ending | None:
    """The limit that the attempt exceeded; otherwise the draft wakes when the next one is reached."""
    deadline = active_deadline(draft.policy, draft.now - active_seconds(draft))
    if deadline is not None and _passed(draft, deadline):
        return Ending(deadline.reason, deadline.message)
    if attempt.ready_at is None:
        return _late_start(draft, attempt)
    return _silent(draft) or _stalled(draft, attempt)


def active_seconds(draft: Draft) -> float:
    """How long the job's attempts have had pods, without suspension, backoff and the time in a queue."""
    before, attempt = float(draft.status.active_seconds or 0), draft.attempt
    if attempt is None or attempt.ended_at is not None:
        return before
    since = unix_seconds(attempt.scheduled_at if draft.policy.gang.scheduler in QUEUEING else attempt.started_at)
    return before if since is None else before + max(0.0, draft.now - since)


def _passed(draft: Draft, deadline: Deadline) -> bool:
    if draft.now >= deadline.at:
        return True
    draft.wake(deadline.at)
    return False


def _late_start(draft: Draft, attempt: Attempt) -> Ending | None:
    since = unix_seconds(attempt.scheduled_at if draft.policy.gang.scheduler in QUEUEING else attempt.started_at)
    if since is None:
        return None
    pods = draft.pods
    needed, unready = lacking_pods(draft, attempt)
    deadline = start_deadline(draft.policy, since, f"{unready} of {needed} pods were not ready")
    if not _passed(draft, deadline):
        return None
    trouble, refusal = trouble_of(pods), refusal_of(draft)
    why = f" {trouble[1]}" if trouble else f" {refusal.message}" if refusal else ""
    # Pods that never ran were waiting for room in the cluster; processes that never got ready are at fault.
    ran = sum(pod.started for pod in pods) >= needed
    return Ending(deadline.reason, f"{deadline.message}{why}", ExitCode.KILLED if ran else None)


def _silent(draft: Draft) -> Ending | None:
    """A rank of a trainer, or a whole pod, that does not run: its pod took itself, or its kubelet took it, out of
    readiness. A step that was finished since proves the opposite. The time counts from when the operator saw it, too:
    a node's clock may be wrong, and a sidecar may have been the one that was not ready."""
    silent = [pod for pod in draft.core if pod.silent_since is not None]
    if not silent:
        return None
    ready, progress = draft.condition("PodsReady"), draft.status.progress
    seen = unix_seconds(ready.last_transition_time) if ready is not None and ready.status == "False" else None
    step_at = unix_seconds(progress.step_at) if progress is not None else None
    since = max(draft.now if seen is None else seen, min(pod.silent_since or 0.0 for pod in silent), step_at or 0.0)
    names = ", ".join(sorted(pod.name for pod in silent)[:_NAMED])
    message = f"{names}: a process hangs; the pod runs without having been ready for {HANG_SECONDS:.0f} s."
    deadline = Deadline(since + HANG_SECONDS, Reason.STALLED, message)
    return Ending(deadline.reason, deadline.message, ExitCode.KILLED) if _passed(draft, deadline) else None


def _stalled(draft: Draft, attempt: Attempt) -> Ending | None:
    """No step for too long. Nothing is ended while the metadata store cannot be read or written, or while the cluster
    has no room for a single rollout."""
    if draft.seen.store != "ok" or _lacks_rollouts(draft, attempt):
        return None
    progress = draft.status.progress
    step_at = unix_seconds(progress.step_at) if progress is not None else None
    ready = max(unix_seconds(at) or 0.0 for at in (attempt.ready_at, attempt.served_at))
    since = max(ready, step_at or 0.0, draft.seen.store_since)
    deadline = stall_deadline(draft.policy, since, progress.step if progress is not None else None)
    return Ending(deadline.reason, deadline.message, ExitCode.KILLED) if _passed(draft, deadline) else None


def _lacks_rollouts(draft: Draft, attempt: Attempt) -> bool:
    """Whether there is no rollout, or was none until now: `served_at` is recorded with this plan."""
    degraded = draft.condition("RolloutsDegraded")
    waited = degraded is not None and degraded.reason == Reason.NO_ROLLOUTS
    return bool(attempt.rollouts) and (waited or not ready_rollouts(draft))
