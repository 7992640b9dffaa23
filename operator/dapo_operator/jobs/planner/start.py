"""Between attempts: whether and when the next one starts, and the objects that it needs."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from dapo_core.jobspec import DAPOJob
from dapo_core.naming import LABEL_JOB, MAX_ATTEMPT, ROLES, Role, child_name
from dapo_core.run.formatting import plural
from dapo_core.run.reasons import Reason
from dapo_core.run.status import Attempt, Pinned
from dapo_operator.jobs.actions import ApplySupport, CreatePod, CreateToken, TryPod
from dapo_operator.jobs.builders.pods import pod
from dapo_operator.jobs.builders.scheduling import Avoid
from dapo_operator.jobs.builders.support import support_objects, token_secret
from dapo_operator.jobs.dapojob import Job
from dapo_operator.jobs.job_objects import Object, config_name
from dapo_operator.jobs.planner.admission import held_by, hold, may_use_run
from dapo_operator.jobs.planner.draft import Draft
from dapo_operator.jobs.planner.in_place import created_in, kept_trainers
from dapo_operator.jobs.planner.nodes import avoided_nodes, has_room_without, tell_avoided
from dapo_operator.jobs.planner.refusals import retry_is_due
from dapo_operator.jobs.planner.reservations import has_room, missing_reservation, placed_pod
from dapo_operator.kube.objects import timestamp, unix_seconds

# Failures that a changed spec repairs: nothing was trained with what was refused, and limits can be raised.
LIMITS: Final = (Reason.TOO_MANY_RESTARTS, Reason.DEADLINE_EXCEEDED)
RECOVERABLE: Final = (Reason.INVALID_SPEC, Reason.POD_REFUSED, *LIMITS)
TRY_AGAIN_SECONDS: Final = 60.0


def start(draft: Draft) -> None:
    """No attempt is live. The first rule that applies wins: refuse the spec, stay failed, stay suspended, wait for
    old pods and for the backoff; otherwise start an attempt."""
    if draft.job.parsed is None:
        return _refuse(draft) if not _at_limit(draft) else None
    if draft.holds("Failed") and not _recovered(draft):
        return None
    if (held := held_by(draft)) is not None:
        return hold(draft, *held)
    draft.clear_condition("Suspended", Reason.RESUMED, "The job was resumed.")
    if _leftovers(draft) or not may_use_run(draft) or _backing_off(draft):
        return None
    return _start(draft, draft.job.parsed)


def _refuse(draft: Draft) -> None:
    """The spec is invalid: create no pods, and report all problems at once."""
    message = " ".join(problem.message for problem in draft.job.problems)
    if not draft.holds("Failed"):
        draft.event("Warning", Reason.INVALID_SPEC, message)
    draft.set_condition("SpecAccepted", False, Reason.INVALID_SPEC, message)
    draft.stop("Failed", Reason.INVALID_SPEC, f"{message} Correct the spec to start the job.")
    draft.set_condition("PodsReady", False, Reason.INVALID_SPEC, "No pods are created for an invalid spec.")
    draft.clear_condition("Training", Reason.INVALID_SPEC)


def _recovered(draft: Draft) -> bool:
    """Whether a failed job may continue: its spec has changed where that repairs it, or the API server would take the
    pods now."""
    failed = draft.condition("Failed")
    if failed is None or failed.reason not in RECOVERABLE:
        return False
    if (draft.spec_changed_since_stop and _has_room(draft, failed.reason)) or draft.seen.acceptable:
        draft.set_condition("Failed", False, Reason.RESUMED, "The problem was fixed.")
        return True
    if failed.reason == Reason.POD_REFUSED and draft.job.parsed is not None and not draft.job.suspended:
        refusal = draft.seen.refusal
        again = draft.now if refusal is None else refusal.at + TRY_AGAIN_SECONDS
        if draft.now >= again:
            members = draft.job.parsed.spec.topology.layout.members()
            one_each = [(role, index, 1) for role, index in members if index == 0]
            draft.act(*(TryPod(body) for body in _pods(draft, draft.job.parsed, MAX_ATTEMPT, one_each)))
            again = draft.now + TRY_AGAIN_SECONDS
        draft.wake(again)
    return False


def _at_limit(draft: Draft) -> bool:
    """Whether a limit has ended the run: an invalid spec does not make that undone."""
    failed = draft.condition("Failed")
    return failed is not None and failed.status == "True" and failed.reason in LIMITS


def _has_room(draft: Draft, reason: str) -> bool:
    """Whether the limit that ended the run, if one did, allows it to continue."""
    policy, status = draft.policy, draft.status
    if reason == Reason.DEADLINE_EXCEEDED:
        limit = policy.active_deadline_seconds
        return limit is None or (status.active_seconds or 0) < limit
    if reason == Reason.TOO_MANY_RESTARTS:
        uncounted = max((status.restarts_uncounted or {}).values(), default=0)
        within = (status.restarts_counted or 0) < policy.max_restarts, uncounted < policy.max_uncounted_restarts
        return all(within) and (draft.attempt is None or draft.attempt.number < MAX_ATTEMPT)
    return True


def _leftovers(draft: Draft) -> bool:
    """Whether pods of earlier attempts still exist that do not wait for this one: two attempts never have pods at the
    same time."""
    kept = kept_trainers(draft)
    left = [old for old in draft.seen.pods if old not in kept]
    for old in left:
        if old.owned:
            draft.delete(old)
    if foreign := [old.name for old in draft.seen.pods if not old.owned]:
        message = (
            f"Waiting until pod {foreign[0]}, which has this job's labels but is not its own, is gone "
            f"({len(foreign)} in all): delete it, or remove its label {LABEL_JOB}."
        )
        draft.set_condition("PodsReady", False, Reason.NAME_TAKEN, message)
    return bool(left)


def _backing_off(draft: Draft) -> bool:
    at = unix_seconds(draft.status.next_attempt_at)
    if at is None or at <= draft.now:
        return False
    number = draft.attempt.number + 1 if draft.attempt else 1
    message = f"Attempt {number} starts at {draft.status.next_attempt_at}."
    draft.set_condition("PodsReady", False, Reason.BACKING_OFF, message)
    draft.wake(at)
    return True


def _start(draft: Draft, job: DAPOJob) -> None:
    number = max([draft.seen.recorded_attempt, *(attempt.number for attempt in draft.status.attempts)]) + 1
    if number > MAX_ATTEMPT:
        message = f"Attempt {MAX_ATTEMPT} was the last possible one."
        draft.stop("Failed", Reason.TOO_MANY_RESTARTS, message)
        return
    checkpoint, layout = draft.seen.checkpoint, job.spec.topology.layout
    from_step = checkpoint.step if checkpoint else 0 if number == 1 or draft.seen.store in ("ok", "readonly") else None
    started, created = timestamp(draft.now), created_in(draft, job, number)
    attempt = Attempt(
        number=number,
        started_at=started,
        from_step=from_step,
        shape=draft.job.shape,
        driver_spec=draft.job.driver_spec,
        pods=layout.pod_count,
        core=layout.core_pods,
        rollouts=layout.pods["rollout"],
        required_rollouts=layout.required_pods["rollout"],
        steps=job.spec.schedule.steps,
        trainers_created_in=created,
    )
    draft.add_attempt(attempt)
    draft.change(rollout_lives=None)
    _pin(draft)
    draft.change(run_id=draft.job.run_id, started_at=draft.status.started_at or started, next_attempt_at=None)
    draft.set_condition("SpecAccepted", True, Reason.SPEC_ACCEPTED, "The spec is valid.")
    tell_avoided(draft)
    draft.set_condition("PodsReady", False, Reason.STARTING, f"Attempt {number} is starting.")
    draft.set_condition("Training", False, Reason.STARTING, f"Attempt {number} is starting.")
    # Whoever waits for one of them to be False need not wait for it to have been True.
    for kind in ("Suspended", "Succeeded", "Failed"):
        if draft.condition(kind) is None:
            draft.set_condition(kind, False, Reason.STARTING, f"Attempt {number} is starting.")
    draft.clear_condition("RolloutsDegraded", Reason.STARTING, f"Attempt {number} is starting.")
    counts = ", ".join(f"{count} {role}" for role, count in layout.pods.items() if count)
    origin = f"the checkpoint of step {from_step}" if from_step else "the model"
    stayed = sum(each != number for each in created or ())
    kept = f" {plural(stayed, 'trainer pod')} stayed." if stayed else ""
    draft.event("Normal", "AttemptStarted", f"Attempt {number} starts from {origin} with pods: {counts}.{kept}")
    create_missing(draft, job)
    create_rollouts(draft, job, dict.fromkeys(range(layout.pods["rollout"]), 1))


def _pin(draft: Draft) -> None:
    """Keep the run's images and revision, with the number of rollouts of now; of a spec that was edited, or whose job
    file is lost, take those of now."""
    pinned, job = draft.status.pinned, draft.job
    if pinned is not None and job.is_as_pinned(pinned):
        if pinned.revision in (None, job.revision):
            return
        if job.kept is not None and job.is_scaled(pinned):
            scaled = {"spec": job.said, "revision": job.revision, "scaled_from": job.kept.read}
            draft.change(pinned=pinned.model_copy(update=scaled))
            return
    renamed = draft.status.started_at is not None and _revision(draft) is None
    draft.change(pinned=Pinned(spec=job.said, image=draft.site.image, revision=job.revision))
    if renamed:  # since an earlier version of the operator
        draft.act(CreateToken(_token(draft)))


def create_missing(draft: Draft, job: DAPOJob) -> None:
    """Create whatever the newest attempt lacks besides rollouts, unless the API server refused some of it a moment
    ago."""
    attempt = draft.attempt
    if attempt is None or not retry_is_due(draft):
        return
    draft.act(*missing_support(draft, job), *missing_reservation(draft, job, attempt.number))
    if not has_room(draft):
        return
    if not _has_token(draft, attempt):
        draft.act(CreateToken(_token(draft)))
    wanted = [(role, index, 1) for role, index in job.spec.topology.layout.members() if _is_missing(draft, role, index)]
    if attempt.trainers_created_in is not None:
        missing = {index for role, index, _ in wanted if role == "trainer"}
        known = enumerate(attempt.trainers_created_in)
        draft.change_attempt(trainers_created_in=[attempt.number if i in missing else number for i, number in known])
    draft.act(*(CreatePod(body) for body in _pods(draft, job, attempt.number, wanted)))


def _is_missing(draft: Draft, role: Role, index: int) -> bool:
    """Whether the newest attempt has no pod of its head or of this trainer, not even one that is being deleted."""
    attempt = draft.attempt
    if attempt is None or role == "rollout":
        return False
    stayed = attempt.trainers_created_in if role == "trainer" else None
    name = child_name(draft.job.name, role, stayed[index] if stayed else attempt.number, index)
    return all(existing.name != name for existing in draft.seen.pods)


def create_rollouts(draft: Draft, job: DAPOJob, lives: Mapping[int, int]) -> None:
    """Create the rollouts of the newest attempt with these indices, each in the given life, unless there is no room for
    them, or the API server refused something a moment ago."""
    attempt = draft.attempt
    if attempt is None or not lives or not retry_is_due(draft) or not has_room(draft):
        return
    wanted: list[tuple[Role, int, int]] = [("rollout", index, life) for index, life in lives.items()]
    draft.act(*(CreatePod(body) for body in _pods(draft, job, attempt.number, wanted)))


def _has_token(draft: Draft, attempt: Attempt) -> bool:
    """Whether the Secret with the Ray token must exist. Secrets are neither watched nor read, but pods are created
    after it: it exists when this attempt has pods, or when the one before was ready. Otherwise, and when a kubelet does
    not find it, it is created again if need be."""
    name = _token(draft)["metadata"]["name"]
    if any(pod.trouble and name in pod.trouble and not pod.started for pod in draft.pods):
        return False
    before = next((old for old in reversed(draft.status.attempts) if old.number < attempt.number), None)
    return bool(draft.pods) or (before is not None and before.ready_at is not None)


def _token(draft: Draft) -> Object:
    job = draft.job
    return token_secret(job.name, job.namespace, job.uid, _revision(draft))


def missing_support(draft: Draft, job: DAPOJob, changed: bool = True) -> Iterator[ApplySupport]:
    """Support objects that do not exist, or (with `changed`) differ from what the spec asks for. How many pods the
    PodDisruptionBudget protects changes with the number of rollouts."""
    existing, revision = draft.seen.support, _revision(draft)
    # The job file never changes, and cannot be made again once spec or platform have changed.
    frozen = [] if _has_job_file(draft.job, revision) else ["ConfigMap"]
    lacking = {
        key
        for key, digest in draft.job.support_digests(revision).items()
        if (key not in existing and key[0] not in frozen)
        or ((changed or key[0] == "PodDisruptionBudget") and key[0] != "ConfigMap" and existing.get(key) != digest)
    }
    if lacking:
        kept = draft.job.kept
        for body in support_objects(job, draft.job.uid, revision, kept.text if kept is not None else None):
            if (body["kind"], body["metadata"]["name"]) in lacking:
                yield ApplySupport(body)


def _revision(draft: Draft) -> str | None:
    return draft.status.pinned.revision if draft.status.pinned is not None else None


def _has_job_file(job: Job, revision: str | None) -> bool:
    """Whether the job file of this revision can be written."""
    return revision in (None, job.revision)


def lacks_job_file(draft: Draft) -> bool:
    """Whether the job file of a valid job's run does not exist, and cannot be made again since spec or platform have
    changed, before any pod has read it: its pods would wait for it until they are too late."""
    revision = _revision(draft)
    exists = ("ConfigMap", config_name(draft.job.name, revision)) in draft.seen.support
    return not exists and not _has_job_file(draft.job, revision) and not any(pod.started for pod in draft.pods)


def _pods(draft: Draft, job: DAPOJob, number: int, wanted: Iterable[tuple[Role, int, int]]) -> list[Object]:
    """Pods of these roles, indices and lives."""
    pinned = draft.status.pinned
    # The image that reads the run's job file so far.
    site = replace(draft.site, image=pinned.image) if pinned is not None and pinned.image else draft.site
    # Where there may be no room elsewhere, a pod on a bad node is better than none.
    nodes = avoided_nodes(draft)
    avoid = {role: Avoid(tuple(nodes), required=has_room_without(draft, nodes, job, role)) for role in ROLES}
    run = draft.job.uid, draft.job.run_id
    joins = draft.attempt is not None and draft.attempt.trainers_created_in is not None
    return [
        placed_pod(draft, role, pod(job, *run, role, number, index, site, pinned, avoid[role], life, joins))
        for role, index, life in wanted
    ]
