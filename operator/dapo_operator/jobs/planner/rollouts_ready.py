"""Whether enough rollouts are ready: for an attempt to start, and, as condition RolloutsDegraded, for one that runs."""

from dapo_core.jobspec import DAPOJob
from dapo_core.run.reasons import Reason
from dapo_core.run.status import Attempt
from dapo_operator.jobs.observed import Pod
from dapo_operator.jobs.planner.draft import Draft
from dapo_operator.jobs.planner.pod_failures import trouble_of
from dapo_operator.jobs.planner.refusals import reason_of, refusal_of
from dapo_operator.jobs.planner.rollout_lives import live_rollouts, wanted_rollouts
from dapo_operator.kube.objects import timestamp, unix_seconds

# Rollouts that a message names.
_NAMED = 3


def ready_rollouts(draft: Draft) -> list[Pod]:
    """The rollouts of the newest attempt that serve."""
    return [pod for pod in live_rollouts(draft) if pod.ready]


def lacking_pods(draft: Draft, attempt: Attempt) -> tuple[int, int]:
    """How many pods the attempt needs to start, and how many of these are not ready."""
    core, rollouts = attempt.core or len(draft.core), _required(draft, attempt)
    ready = sum(pod.ready for pod in draft.core)
    return core + rollouts, core - ready + max(0, rollouts - len(ready_rollouts(draft)))


def is_quorate(draft: Draft, attempt: Attempt) -> bool:
    """Whether head, trainers and as many rollouts as the spec requires are ready."""
    return lacking_pods(draft, attempt)[1] == 0


def _required(draft: Draft, attempt: Attempt) -> int:
    job = draft.job.parsed
    if job is None:
        return 0
    return min(job.spec.topology.layout.required_pods["rollout"], wanted_rollouts(draft, attempt, job))


def awaits_too_many(draft: Draft, attempt: Attempt) -> bool:
    """Whether the driver of an attempt that starts would wait for rollouts that are not created any more, or that are
    not required any more and do not run yet: it has read once how many there have to be."""
    job, awaited = draft.job.parsed, attempt.required_rollouts
    if job is None or not awaited:
        return False
    run = sum(pod.started for pod in live_rollouts(draft))
    return wanted_rollouts(draft, attempt, job) < awaited or (_required(draft, attempt) < awaited and run < awaited)


def note_rollouts(draft: Draft, attempt: Attempt, job: DAPOJob) -> None:
    """Condition RolloutsDegraded of an attempt that runs."""
    wanted = wanted_rollouts(draft, attempt, job)
    if not wanted:
        return
    ready, known = len(ready_rollouts(draft)), draft.condition("RolloutsDegraded")
    if ready and known is not None and known.reason == Reason.NO_ROLLOUTS:
        draft.change_attempt(served_at=timestamp(draft.now))
    if ready >= wanted:
        message = f"All {wanted} rollouts are ready."
        draft.set_condition("RolloutsDegraded", False, Reason.ROLLOUTS_READY, message)
        return
    reason, why = _why(draft)
    if not ready:
        reason, goes_on = Reason.NO_ROLLOUTS, "Training waits for one; the attempt is kept."
    else:
        goes_on = "Training continues with the others."
    message = f"{ready} of {wanted} rollouts are ready. {goes_on} {why}".rstrip()
    draft.set_condition("RolloutsDegraded", True, reason, message)


def _why(draft: Draft) -> tuple[str, str]:
    """The reason and the sentence that best explain why rollouts are not ready."""
    live, refusal = live_rollouts(draft), refusal_of(draft)
    if refusal is not None:
        return reason_of(refusal), f"The API server refused {refusal.what} (retrying): {refusal.message}"
    if (trouble := trouble_of(live)) is not None:
        return trouble
    present = {pod.index for pod in live}
    lives = [life for life in draft.status.rollout_lives or () if life.index not in present]
    waiting = [life for life in lives if (unix_seconds(life.since) or 0.0) > draft.now]
    if waiting:
        index, ended, at = waiting[0].index, waiting[0].reason, waiting[0].since
        return Reason.BACKING_OFF, f"Rollout {index} ended ({ended}); its next pod starts at {at}."
    serving = {pod.index for pod in live if pod.ready}
    replaced = [life for life in draft.status.rollout_lives or () if life.reason and life.index not in serving]
    names = ", ".join(f"rollout {life.index} ({life.reason})" for life in replaced[:_NAMED])
    return Reason.STARTING, f"Replaced: {names}." if names else "They are starting."
