"""Between attempts: whether and when the next one starts."""

import hashlib
from collections.abc import Iterable, Iterator
from typing import Final

from dapo_core.jobspec import DAPOJob
from dapo_core.naming import MAX_ATTEMPT, Role, child_name
from dapo_core.run.backoff import Backoff
from dapo_core.run.reasons import Reason
from dapo_core.run.status import Attempt
from dapo_operator.jobs.actions import ApplySupport, CreatePod, CreateToken, TryPod
from dapo_operator.jobs.builders.common import Object
from dapo_operator.jobs.builders.pods import pod
from dapo_operator.jobs.builders.support import support_objects, token_secret
from dapo_operator.jobs.planner.conditions import find
from dapo_operator.jobs.planner.draft import Draft
from dapo_operator.kube.clock import seconds, stamp

# Failures that a changed spec can repair: nothing was trained with what was refused.
RECOVERABLE: Final = (Reason.INVALID_SPEC, Reason.POD_REFUSED)
HELD_REASONS: Final = (Reason.SUSPENDED_BY_GUARD, Reason.SUSPENDED_BY_SAMPLING)
RETRY: Final = Backoff(5.0, 300.0)
TRY_AGAIN_SECONDS: Final = 60.0


def between(draft: Draft) -> None:
    """No attempt lives: refuse, hold, wait, or start one."""
    if draft.job.job is None:
        return refuse(draft)
    if draft.holds("Failed") and not _recovered(draft):
        return None
    if (held := held_by(draft)) is not None:
        return hold(draft, *held)
    draft.unsay("Suspended", Reason.RESUMED, "The job goes on.")
    if waits_for_quota(draft):
        return None
    if _leftovers(draft) or _backing_off(draft):
        return None
    return _start(draft, draft.job.job)


def held_by(draft: Draft) -> tuple[str, str] | None:
    """Why the job may not run now, if it may not: the reason and a sentence of condition Suspended."""
    if draft.job.suspended:
        return Reason.SUSPENDED_BY_USER, "spec.suspend is true: set it to false to go on from the newest checkpoint."
    held = find(draft.status.conditions, "Suspended")
    if held is None or held.status != "True" or held.reason not in HELD_REASONS:
        return None
    # Any later change of the spec is a person's word that the job may go on.
    return (held.reason, held.message) if draft.job.generation <= (held.observed_generation or 0) else None


def hold(draft: Draft, reason: str, message: str) -> None:
    """Show that the job is suspended and holds no pods."""
    if not draft.holds("Suspended"):
        draft.event("Normal", reason, f"Suspended, and all pods are freed. {message}")
    draft.say("Suspended", True, reason, message)
    draft.say("PodsReady", False, reason, "The job is suspended.")
    draft.say("Training", False, reason, "The job is suspended.")
    draft.change(next_attempt_at=None)


def refuse(draft: Draft) -> None:
    """The spec can not be used: no pods, and everything that is wrong with it at once."""
    message = " ".join(problem.message for problem in draft.job.problems)
    if not draft.holds("Failed"):
        draft.event("Warning", Reason.INVALID_SPEC, message)
    draft.say("SpecAccepted", False, Reason.INVALID_SPEC, message)
    draft.say("Failed", True, Reason.INVALID_SPEC, f"{message} Change the spec, and the job goes on.")
    draft.say("PodsReady", False, Reason.INVALID_SPEC, "No pod is made of a spec that can not be used.")
    draft.unsay("Training", Reason.INVALID_SPEC)


def _recovered(draft: Draft) -> bool:
    """Whether what was refused may be tried again: the spec has changed, or the API server takes the pods now."""
    failed = find(draft.status.conditions, "Failed")
    if failed is None or failed.reason not in RECOVERABLE:
        return False
    if draft.job.generation > (failed.observed_generation or 0) or draft.seen.acceptable:
        draft.say("Failed", False, Reason.RESUMED, "What was refused has been repaired.")
        return True
    if failed.reason == Reason.POD_REFUSED and draft.job.job is not None and not draft.job.suspended:
        refusal = draft.seen.refusal
        again = draft.now if refusal is None else refusal.at + TRY_AGAIN_SECONDS
        if draft.now >= again:
            one_each = [(role, index) for role, index in draft.job.job.spec.topology.layout.members() if index == 0]
            draft.act(*(TryPod(body) for body in _pods(draft, draft.job.job, MAX_ATTEMPT, one_each)))
            again = draft.now + TRY_AGAIN_SECONDS
        draft.wake(again)
    return False


def waits_for_quota(draft: Draft) -> bool:
    """Whether another controller decides about the start, and has not let the job start."""
    if draft.job.managed_by is None:
        return False
    reserved = find(draft.status.conditions, "QuotaReserved")
    if reserved is not None and reserved.status == "True":
        return False
    if reserved is None:
        message = f"{draft.job.managed_by} (spec.managedBy) sets this condition to True when the job may start."
        draft.say("QuotaReserved", False, Reason.WAITING_FOR_QUOTA, message)
    draft.say("PodsReady", False, Reason.WAITING_FOR_QUOTA, f"Waiting for {draft.job.managed_by}.")
    return True


def _leftovers(draft: Draft) -> bool:
    """Whether pods are still there that are not the next attempt's: two attempts never have pods at once."""
    own = [pod for pod in draft.seen.pods if pod.owned]
    for each in own:
        draft.delete(each)
    if foreign := [pod.name for pod in draft.seen.pods if not pod.owned]:
        message = f"Waiting until {foreign[0]} is gone, a pod of an earlier job of this name ({len(foreign)} in all)."
        draft.say("PodsReady", False, Reason.NAME_TAKEN, message)
    return bool(draft.seen.pods)


def _backing_off(draft: Draft) -> bool:
    at = seconds(draft.status.next_attempt_at)
    if at is None or at <= draft.now:
        return False
    number = draft.attempt.number + 1 if draft.attempt else 1
    draft.say("PodsReady", False, Reason.BACKING_OFF, f"Attempt {number} starts at {draft.status.next_attempt_at}.")
    draft.wake(at)
    return True


def _start(draft: Draft, job: DAPOJob) -> None:
    number = max([draft.seen.recorded_attempt, *(attempt.number for attempt in draft.status.attempts)]) + 1
    if number > MAX_ATTEMPT:
        draft.say("Failed", True, Reason.TOO_MANY_RESTARTS, f"There is no attempt after {MAX_ATTEMPT}.")
        return
    checkpoint = draft.seen.checkpoint
    from_step = checkpoint.step if checkpoint else 0 if number == 1 or draft.seen.store == "ok" else None
    started = stamp(draft.now)
    pods = job.spec.topology.layout.pod_count
    draft.add_attempt(Attempt(number=number, started_at=started, from_step=from_step, shape=draft.job.shape, pods=pods))
    draft.change(run_id=draft.job.run_id, started_at=draft.status.started_at or started, next_attempt_at=None)
    draft.say("SpecAccepted", True, Reason.SPEC_ACCEPTED, "The spec can be used.")
    draft.say("PodsReady", False, Reason.STARTING, f"Attempt {number} is starting.")
    draft.say("Training", False, Reason.STARTING, f"Attempt {number} is starting.")
    counts = ", ".join(f"{count} {role}" for role, count in job.spec.topology.layout.pods.items() if count)
    origin = f"the checkpoint of step {from_step}" if from_step else "the model"
    draft.event("Normal", "AttemptStarted", f"Attempt {number} starts from {origin} with pods: {counts}.")
    create_missing(draft, job)


def create_missing(draft: Draft, job: DAPOJob) -> None:
    """Ask for whatever the living attempt lacks, and not more often than refusals allow."""
    attempt = draft.attempt
    if attempt is None or was_refused_lately(draft, attempt.number):
        return
    draft.act(*missing_support(draft, job, attempt.number))
    there = {pod.name for pod in draft.seen.pods}
    if not _has_token(draft, attempt):
        draft.act(CreateToken(token_secret(job.metadata.name, job.metadata.namespace, draft.job.uid)))
    wanted = [
        (role, index)
        for role, index in job.spec.topology.layout.members()
        if child_name(draft.job.name, role, attempt.number, index) not in there
    ]
    draft.act(*(CreatePod(body) for body in _pods(draft, job, attempt.number, wanted)))


def was_refused_lately(draft: Draft, number: int) -> bool:
    """Whether the API server refused something of this attempt, and is not asked again yet."""
    refusal = draft.seen.refusal
    if refusal is None or refusal.attempt != number:
        return False
    at = refusal.at + RETRY.delay(refusal.tries)
    if draft.now >= at:
        return False
    draft.wake(at)
    return True


def _has_token(draft: Draft, attempt: Attempt) -> bool:
    """Secrets are not watched: pods of this attempt were made after its token, and an attempt that was ready had one.
    After one that did not get ready it is made sure of again."""
    before = next((each for each in reversed(draft.status.attempts) if each.number < attempt.number), None)
    return bool(draft.pods) or (before is not None and before.ready_at is not None)


def missing_support(draft: Draft, job: DAPOJob, number: int, changed: bool = True) -> Iterator[ApplySupport]:
    """Support objects that are not there, or (with `changed`) not as the spec wants them."""
    there = draft.seen.support
    lacking = {
        key
        for key, digest in draft.job.support_digests(number).items()
        if key not in there or (changed and there[key] != digest)
    }
    if lacking:
        for body in support_objects(job, draft.job.uid, number):
            if (body["kind"], body["metadata"]["name"]) in lacking:
                yield ApplySupport(body)


def _pods(draft: Draft, job: DAPOJob, number: int, wanted: Iterable[tuple[Role, int]]) -> list[Object]:
    return [pod(job, draft.job.uid, draft.job.run_id, role, number, index, draft.site) for role, index in wanted]


def jitter(uid: str, number: int) -> float:
    """A fraction of 0 to 1, the same for one attempt of one job: gangs that collided do not come back together."""
    return hashlib.sha256(f"{uid}/{number}".encode()).digest()[0] / 255
