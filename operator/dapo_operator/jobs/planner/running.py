"""A live attempt: end it when a rule says so, otherwise create what it lacks and report whether its pods are ready."""

from dapo_core.run.reasons import Reason
from dapo_core.run.status import Attempt
from dapo_operator.jobs.builders.support import SPEC_FREE
from dapo_operator.jobs.dapojob import is_edited
from dapo_operator.jobs.gangs.schedulers import QUEUEING
from dapo_operator.jobs.observed import Pod
from dapo_operator.jobs.planner.admission import revoked
from dapo_operator.jobs.planner.draft import Draft
from dapo_operator.jobs.planner.guard_alerts import stopped_by_guard
from dapo_operator.jobs.planner.nodes import drained, lost_node
from dapo_operator.jobs.planner.pod_failures import (
    Ending,
    head_end,
    head_of,
    head_taken,
    rollout_end,
    trouble_of,
    worker_end,
)
from dapo_operator.jobs.planner.refusals import reason_of, refusal_of, refused_for_good, retry_is_due
from dapo_operator.jobs.planner.reservations import missing_reservation, note_reservation, note_waiting, scheduler_of
from dapo_operator.jobs.planner.rollout_lives import live_rollouts, tend_rollouts, unreplaced_ends, wanted_rollouts
from dapo_operator.jobs.planner.rollouts_ready import awaits_too_many, is_quorate, note_rollouts
from dapo_operator.jobs.planner.start import create_missing, lacks_job_file, missing_support
from dapo_operator.jobs.planner.termination import begin
from dapo_operator.jobs.planner.timeouts import timed_out
from dapo_operator.kube.objects import age, timestamp


def run(draft: Draft, attempt: Attempt) -> None:
    """End the attempt if it has to end; otherwise keep it going."""
    ending = _ending(draft, attempt)
    if ending is not None:
        return begin(draft, ending)
    attempt = _adopt(draft, attempt)
    _note_spec(draft, attempt)
    _note_nodes(draft, attempt)
    note_reservation(draft)
    if attempt.ready_at is None:
        return _start_pods(draft, attempt)
    return _watch_pods(draft, attempt)


def _ending(draft: Draft, attempt: Attempt) -> Ending | None:
    """Why the attempt has to end. The first rule that applies wins, and the order is their weight: what the head itself
    reports, then what the user wants, then what happened to the pods and their nodes, then limits, then guards."""
    ends, started = draft.ends, attempt.ready_at is not None
    spec = draft.job.spec if draft.job.parsed else None
    return (
        head_end(ends)
        or revoked(draft)
        or head_taken(ends, started)
        or worker_end(ends, spec, started)
        or rollout_end(unreplaced_ends(draft), spec, started)
        or lost_node(draft)
        or drained(draft)
        or (_missing(draft, attempt) if started else _changed(draft, attempt) or refused_for_good(draft))
        or timed_out(draft, attempt)
        or stopped_by_guard(draft, attempt)
    )


def _missing(draft: Draft, attempt: Attempt) -> Ending | None:
    """A pod of a started attempt no longer exists, and its last state was not seen."""
    # An earlier version of the operator recorded only how many pods there are in all.
    pods, expected = (draft.pods, attempt.pods or 0) if attempt.core is None else (draft.core, attempt.core)
    if len(pods) >= expected:
        return None
    if head_of(pods) is None:
        return Ending(Reason.POD_DELETED, "The head pod disappeared; no reason was reported.", role="head")
    count = expected - len(pods)
    return Ending(Reason.POD_DELETED, f"{count} of {expected} pods disappeared; no reason was reported.")


def _changed(draft: Draft, attempt: Attempt) -> Ending | None:
    """Pods that do not run yet are replaced when the spec now asks for different ones."""
    if draft.job.parsed is None:
        return Ending(Reason.SPEC_CHANGED, "The spec was changed and is no longer valid.")
    if awaits_too_many(draft, attempt):
        message = f"The driver waits for {attempt.required_rollouts} rollouts, and the spec asks for fewer by now."
        return Ending(Reason.SPEC_CHANGED, f"{message} Recreating the pods.")
    edited = is_edited(attempt.shape, draft.job.shape)
    if not edited and not _reads_old_file(draft, attempt) and not lacks_job_file(draft):
        return None
    return Ending(Reason.SPEC_CHANGED, "The spec was changed while the pods were starting; recreating the pods.")


def _reads_old_file(draft: Draft, attempt: Attempt) -> bool:
    """Whether the job file was edited while none of the pods that would read the old one has a node."""
    edited = attempt.driver_spec not in (None, draft.job.driver_spec)
    return edited and not any(pod.scheduled for pod in draft.pods)


def _note_spec(draft: Draft, attempt: Attempt) -> None:
    if draft.job.parsed is None:
        message = " ".join(problem.message for problem in draft.job.problems)
        message = f"{message} The running attempt continues unchanged."
        draft.set_condition("SpecAccepted", False, Reason.INVALID_SPEC, message)
    elif is_edited(attempt.shape, draft.job.shape):
        message = f"Attempt {attempt.number} continues unchanged; changes of the pods apply from the next attempt."
        draft.set_condition("SpecAccepted", True, Reason.APPLIES_NEXT_ATTEMPT, message)
    elif attempt.steps is not None and attempt.steps != (steps := draft.job.spec.schedule.steps):
        wanted = f"schedule.steps ({steps or 'unset'})"
        message = f"Attempt {attempt.number} runs to step {attempt.steps}; {wanted} applies after it."
        draft.set_condition("SpecAccepted", True, Reason.APPLIES_NEXT_ATTEMPT, message)
    elif attempt.driver_spec not in (None, draft.job.driver_spec):
        message = f"Attempt {attempt.number} continues unchanged; changes of the spec apply from the next attempt."
        draft.set_condition("SpecAccepted", True, Reason.APPLIES_NEXT_ATTEMPT, message)
    else:
        draft.set_condition("SpecAccepted", True, Reason.SPEC_ACCEPTED, "The spec is valid.")


def _adopt(draft: Draft, attempt: Attempt) -> Attempt:
    """The attempt with the digests of the spec that it runs: those of this version for one that another version has
    recorded."""
    fields: dict[str, str | int | None] = {}
    if draft.job.parsed is not None:
        if attempt.shape != draft.job.shape and not is_edited(attempt.shape, draft.job.shape):
            fields["shape"] = draft.job.shape
        if attempt.driver_spec is None:
            fields |= {"driver_spec": draft.job.driver_spec, "steps": draft.job.spec.schedule.steps}
        if attempt.core is None:
            rollouts = sum(pod.role == "rollout" for pod in draft.pods)
            fields |= {"core": max(1, (attempt.pods or 1) - rollouts), "rollouts": rollouts}
    if draft.job.parsed is not None:
        _adopt_pinned(draft)
    if not fields:
        return attempt
    draft.change_attempt(**fields)
    return attempt.model_copy(update=fields)


def _adopt_pinned(draft: Draft) -> None:
    """The digest of the spec that the run has taken over, without the number of rollouts, where an earlier version
    recorded one with it. A run whose job file changes with the spec goes on as it is."""
    pinned, job = draft.status.pinned, draft.job
    if pinned is not None and pinned.revision is not None and pinned.spec == job.said_earlier:
        draft.change(pinned=pinned.model_copy(update={"spec": job.said}))


def _note_nodes(draft: Draft, attempt: Attempt) -> None:
    """When the first pod of a queued gang got a node: from then on the started part of the gang keeps others out."""
    queues = draft.policy.gang.scheduler in QUEUEING
    if queues and attempt.scheduled_at is None and any(pod.scheduled for pod in draft.pods):
        draft.change_attempt(scheduled_at=timestamp(draft.now))


def _start_pods(draft: Draft, attempt: Attempt) -> None:
    """Create what is missing until all pods were ready once."""
    job, pods = draft.job.parsed, draft.pods
    if job is None:
        return
    if is_quorate(draft, attempt):
        _all_ready(draft, attempt)
        tend_rollouts(draft, attempt, job)
        note_rollouts(draft, attempt, job)
        return
    create_missing(draft, job)
    tend_rollouts(draft, attempt, job)
    refusal, trouble = refusal_of(draft), trouble_of(pods)
    if refusal is not None:
        _not_ready(draft, reason_of(refusal), f"The API server refused {refusal.what} (retrying): {refusal.message}")
    elif trouble is not None:
        unscheduled = _unscheduled(pods, len(pods)) if trouble[0] == Reason.UNSCHEDULABLE else ""
        _not_ready(draft, trouble[0], f"{unscheduled}{trouble[1]}")
    elif not note_waiting(draft):
        draft.set_condition("PodsReady", False, Reason.STARTING, f"Attempt {attempt.number} is starting.")


def _not_ready(draft: Draft, reason: str, message: str) -> None:
    known = draft.condition("PodsReady")
    if known is None or known.reason != reason:
        draft.event("Warning", reason, message)
    draft.set_condition("PodsReady", False, reason, message)


def _unscheduled(pods: list[Pod], wanted: int) -> str:
    count = sum(not pod.scheduled for pod in pods)
    return f"{count} of {wanted} pods {'has' if count == 1 else 'have'} no node; " if count else ""


def _all_ready(draft: Draft, attempt: Attempt) -> None:
    took, are_ready = int(age(attempt.started_at, draft.now)), _are_ready(draft, attempt)
    draft.change_attempt(ready_at=timestamp(draft.now))
    _pin_images(draft)
    draft.set_condition("PodsReady", True, Reason.PODS_READY, f"{are_ready}.")
    draft.set_condition("Training", True, Reason.TRAINING, f"Attempt {attempt.number} is running.")
    draft.clear_condition("Stalled", Reason.TRAINING, "A new attempt is running.")
    draft.event("Normal", Reason.PODS_READY, f"{are_ready} after {took} s in attempt {attempt.number}.")


def _are_ready(draft: Draft, attempt: Attempt) -> str:
    """A sentence without its period: which pods of an attempt that can run are ready."""
    rollouts = live_rollouts(draft)
    wanted = wanted_rollouts(draft, attempt, draft.job.parsed) if draft.job.parsed is not None else len(rollouts)
    if len(rollouts) < wanted or not all(pod.ready for pod in rollouts):
        return "Head and trainers are ready"
    return f"All {len(draft.core) + len(rollouts)} pods are ready"


def _pin_images(draft: Draft) -> None:
    """Note the digests of the images that the run's first attempt trains with: a tag may be moved."""
    pinned = draft.status.pinned
    if pinned is None or pinned.images is not None:
        return
    images = {pod.image: pod.image_by_digest for pod in draft.pods if pod.image and pod.image_by_digest}
    if images:
        draft.change(pinned=pinned.model_copy(update={"images": dict(sorted(images.items()))}))


def _watch_pods(draft: Draft, attempt: Attempt) -> None:
    """All required pods were ready once. Replace rollouts, and restore support objects that somebody deleted."""
    job, refused = draft.job.parsed, ""
    if job is not None:
        edited = is_edited(attempt.shape, draft.job.shape)
        lacking = list(missing_support(draft, job, changed=False))
        # Of an edited spec only what does not depend on it, such as the NetworkPolicy in front of Ray.
        lacking = [action for action in lacking if not edited or action.body["kind"] in SPEC_FREE]
        # One of which only the scheduler knows that it is missing; whoever deletes a Workload wants its quota back.
        room = [] if edited or scheduler_of(draft).waits else list(missing_reservation(draft, job, attempt.number))
        if (lacking or room) and retry_is_due(draft):
            draft.act(*lacking, *room)
        if lacking and (refusal := refusal_of(draft)) is not None:
            refused = f" But the API server refused {refusal.what} (retrying): {refusal.message}"
        tend_rollouts(draft, attempt, job)
        note_rollouts(draft, attempt, job)
    unready = sorted(pod.name for pod in draft.core if not pod.ready)
    if unready:
        message = f"No longer ready: {', '.join(unready[:3])}."
        draft.set_condition("PodsReady", False, Reason.CONTAINER_WAITING, message)
    else:
        message = f"{_are_ready(draft, attempt)}.{refused}"
        draft.set_condition("PodsReady", True, Reason.PODS_READY, message)
