"""Carries a plan out: first the status, so that an attempt is recorded before its pods, then the children."""

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, ParamSpec, TypeVar

from dapo_core.jobspec import DAPOJob
from dapo_core.naming import LABEL_JOB, LABEL_RUN
from dapo_core.run.status import Attempt, DAPOJobStatus
from dapo_operator.children import WATCHED, Children, JobKey
from dapo_operator.jobs.actions import (
    Action,
    Adopt,
    ApplySupport,
    Body,
    CreatePod,
    CreateToken,
    DeleteJob,
    DeletePod,
    DeleteSupport,
    Plan,
    Release,
    ReportOutcome,
    Reserve,
    TryPod,
)
from dapo_operator.jobs.dapojob import JOBS, Job, status_body, with_finalizer, without_finalizer
from dapo_operator.jobs.gangs.kueue import FLAVORS, PRIORITIES
from dapo_operator.jobs.gangs.schedulers import SCHEDULERS
from dapo_operator.jobs.job_objects import config_name
from dapo_operator.jobs.observed import Refusal, RefusalKind, pod_of
from dapo_operator.jobs.planner.in_place import trainers_that_stayed
from dapo_operator.jobs.revision import KeptFile, job_file_of
from dapo_operator.kube.client import KubeClient
from dapo_operator.kube.objects import (
    PODS,
    SECRETS,
    ApiError,
    ConflictError,
    ExistsError,
    NotFoundError,
    Object,
    RefusedError,
    Resource,
    UnreachableError,
    controller_uid,
)
from dapo_operator.queue_positions import QueuePositions

# After a refusal, such as of a quota, the rest of a gang is not asked for.
PODS_AT_ONCE: Final = 50
# `reason` of a Status that would be the same whenever the object is sent.
_PERMANENT_REASONS: Final = ("Invalid", "BadRequest")
# What an answer says of a pod that is ending. One that went at once has no version: the watch reports its end.
_ENDING: Final = {"deletionTimestamp", "resourceVersion"}
A = TypeVar("A", bound=Action)
R = TypeVar("R")
P = ParamSpec("P")
logger = logging.getLogger(__name__)


class LeftoverPodsError(Exception):
    """Pods exist that no watch had reported: the plan was made from an old view."""


@dataclass(frozen=True)
class Refusals:
    """The last refusals of a job: of an object of its newest attempt, and to delete one of its pods."""

    refusal: Refusal | None = None
    undeletable: Refusal | None = None


@dataclass
class ActionResult:
    """What came of a plan's actions: the first refusal, whether pods that were refused before would be taken now, and
    how many pods were created. `undeletable` is the first refusal to delete a pod, `deleted` how many were deleted."""

    refusal: Refusal | None = None
    undeletable: Refusal | None = None
    acceptable: bool = False
    created: int = 0
    deleted: int = 0


@dataclass(frozen=True)
class _Refused:
    """An object that the API server refused, and its error."""

    kind: str
    name: str
    error: ApiError


class Executor:
    """Writes for all jobs."""

    def __init__(self, kube: KubeClient, children: Children) -> None:
        self._kube, self._children = kube, children
        self.positions = QueuePositions(kube)

    async def read(self, key: JobKey) -> Object:
        """The job from the API server. Raises ApiError."""
        return await self._kube.get(JOBS, *key)

    async def add_finalizer(self, job: Job, raw: Object) -> Object:
        """Returns the job with the finalizer. Raises ConflictError when `raw` is not the newest state."""
        return await self._patch(job, with_finalizer(raw, job.uid))

    async def remove_finalizer(self, job: Job, raw: Object) -> None:
        """Let Kubernetes remove the deleted job. Raises ConflictError when `raw` is not the newest state."""
        await self._patch(job, without_finalizer(raw, job.uid))

    async def _patch(self, job: Job, change: Object) -> Object:
        return await self._kube.patch(JOBS, job.namespace, job.name, change)

    async def job_file(self, job: Job, revisions: Sequence[str]) -> tuple[KeptFile, DAPOJob] | None:
        """The job file of the first of these revisions that the job has, with the number of rollouts of a valid job;
        None when there is none. Raises ApiError."""
        for revision in revisions:
            with contextlib.suppress(NotFoundError):
                raw = await self._kube.get(WATCHED["ConfigMap"], job.namespace, config_name(job.name, revision))
                found = job_file_of(raw, revision, job.spec.topology.rollout)
                if found is not None and controller_uid(raw) == job.uid:
                    return found
        return None

    async def confirm_no_pods(self, key: JobKey, attempt: Attempt) -> None:
        """Ask the API server itself, not the watch, whether all pods are gone but the trainers that wait for this
        attempt, which is about to begin. Raises LeftoverPodsError. A pod that has the label of the job but not the
        others of a job's pod is no concern of it."""
        staying = trainers_that_stayed(key[1], attempt)
        labeled, version = await self._kube.list(PODS, key[0], f"{LABEL_JOB}={key[1]}")
        known = [(raw, pod) for raw in labeled if (pod := pod_of(raw)) is not None]
        for raw, _ in known:
            self._children.pods.put(raw)
        pods = [raw for raw, pod in known if pod.name not in staying or pod.ready or pod.deleting or pod.finished]
        if pods:
            names = ", ".join(raw["metadata"]["name"] for raw in pods[:3])
            raise LeftoverPodsError(f"{len(pods)} pods still exist at version {version}: {names}")

    async def others_pods(self, job: Job) -> tuple[str, ...]:
        """Pods of the job's run that another DAPOJob owns, as the API server itself knows them. Raises ApiError."""
        labeled, _ = await self._kube.list(PODS, job.namespace, f"{LABEL_RUN}={job.run_id}")
        return tuple(raw["metadata"]["name"] for raw in labeled if controller_uid(raw) != job.uid)

    async def write_status(self, raw: Object, status: DAPOJobStatus) -> Object:
        """Replace the status; returns the job with it. Raises ConflictError when `raw` is not the newest state."""
        meta = raw["metadata"]
        body = {
            "apiVersion": raw["apiVersion"],
            "kind": raw["kind"],
            "metadata": {key: meta[key] for key in ("name", "namespace", "uid", "resourceVersion")},
            "status": status_body(status),
        }
        return await self._kube.put_status(JOBS, body)

    async def act(self, key: JobKey, job: Job, plan: Plan, now: float, last: Refusals) -> ActionResult:
        """Everything of a plan but the status and the finalizer: delete pods, release their room, then create what pods
        need, then pods.
        A refusal is part of the outcome, after those of `last`; raises ApiError for every other error."""
        outcome = ActionResult()
        attempt = plan.status.attempts[-1].number if plan.status.attempts else 0
        deletions = _of(plan, DeletePod)
        if undeleted := await _refusals(self._delete_pod(key, action) for action in deletions):
            outcome.undeletable = _refusal(undeleted[0], now, attempt, last.undeletable)
        outcome.deleted = len(deletions) - len(undeleted)
        # Before the next attempt asks for room: it may need that of the last one, and must not have both.
        for release in _of(plan, Release):
            await self._release(key, release)
        support = [_tried(action.body, self._apply_support, action, job) for action in _of(plan, ApplySupport)]
        tokens = [_tried(action.body, self._create_token, action) for action in _of(plan, CreateToken)]
        reserved = [_tried(action.body, self._reserve, action, job) for action in _of(plan, Reserve)]
        adopted = [_tried(action.body, self._adopt, action, job) for action in _of(plan, Adopt)]
        refused = await _refusals([*support, *tokens, *reserved, *adopted])
        if not refused:
            pods = _of(plan, CreatePod)
            for first in range(0, len(pods), PODS_AT_ONCE):
                part = pods[first : first + PODS_AT_ONCE]
                refused = await _refusals(_tried(action.body, self._create_pod, action, job) for action in part)
                outcome.created += len(part) - len(refused)
                if refused:
                    break
        if tried := _of(plan, TryPod):
            refused = await _refusals(_tried(action.body, self._try_pod, action) for action in tried)
            outcome.acceptable = not refused
            attempt = last.refusal.attempt if last.refusal is not None else attempt
        if refused:
            outcome.refusal = _refusal(refused[0], now, attempt, last.refusal)
        for action in _of(plan, DeleteSupport):
            await self._delete_support(key, action)
        for report in _of(plan, ReportOutcome):
            await self._report(report)
        if _of(plan, DeleteJob):
            await _unless_gone(self._kube.delete(JOBS, job.namespace, job.name, job.uid))
        return outcome

    async def _delete_pod(self, key: JobKey, action: DeletePod) -> _Refused | None:
        try:
            raw = await _unless_gone(self._kube.delete(PODS, key[0], action.name, action.uid, action.grace_seconds))
        except ApiError as error:
            if not _is_refusal(error):
                raise
            return _Refused("Pod", action.name, error)
        if raw is not None and raw.get("kind") == "Pod" and _ENDING <= raw["metadata"].keys():
            self._children.pods.put(raw)
        return None

    async def _create_pod(self, action: CreatePod, job: Job) -> None:
        # One of an earlier job stays: the planner waits until it is gone.
        raw, _ = await self._create_own(PODS, dict(action.body), job)
        self._children.pods.put(raw)

    async def _create_own(self, resource: Resource, body: Object, job: Job) -> tuple[Object, bool]:
        """The object, created or, if it existed, as it is, and whether it existed. Raises ExistsError when another
        owner's has its name."""
        try:
            return await self._kube.create(resource, body), False
        except ExistsError:
            raw = await self._kube.get(resource, job.namespace, body["metadata"]["name"])
            if controller_uid(raw) != job.uid:
                raise
            return raw, True

    async def _try_pod(self, action: TryPod) -> None:
        await self._kube.create(PODS, dict(action.body), dry_run=True)

    async def _apply_support(self, action: ApplySupport, job: Job) -> None:
        body = dict(action.body)
        resource = WATCHED[body["kind"]]
        name = body["metadata"]["name"]
        known = self._children.support_of((job.namespace, job.name), job.uid)
        if (body["kind"], name) in known:
            raw = await self._kube.apply(resource, body)
        else:
            # Applying would take over an object of that name that is somebody else's.
            raw, existed = await self._create_own(resource, body, job)
            if existed and body["kind"] != "ConfigMap":  # which never changes
                raw = await self._kube.apply(resource, body)
        self._children.support(body["kind"]).put(raw)

    async def _delete_support(self, key: JobKey, action: DeleteSupport) -> None:
        """An object that may not be deleted does no harm to the job: it is tried again at the next occasion."""
        try:
            uid = self._children.uid_of(key, action.kind, action.name)
            await _unless_gone(self._kube.delete(WATCHED[action.kind], key[0], action.name, uid))
            # The next attempt may start before the watch says so.
            self._children.support(action.kind).forget(key, action.name)
        except RefusedError as error:
            logger.warning("Could not delete %s %s: %s", action.kind, action.name, error.message)

    async def _reserve(self, action: Reserve, job: Job) -> None:
        resource = SCHEDULERS[action.scheduler].resource
        assert resource is not None
        body = dict(action.body)
        if (priority := await self._priority(body)) is not None:
            body["spec"] = {**body["spec"], "priority": priority}
        raw, _ = await self._create_own(resource, body, job)
        self._children.reservations[action.scheduler].put(raw)

    async def _adopt(self, action: Adopt, job: Job) -> None:
        """Raises ExistsError when the reservation has another owner, and RefusedError when there is none."""
        resource = SCHEDULERS[action.scheduler].resource
        assert resource is not None
        what = f"{action.body['kind']} {action.name}"
        try:
            raw = await self._kube.get(resource, job.namespace, action.name)
        except NotFoundError as error:
            raise RefusedError(f"{what}, which was made for this job, does not exist.") from error
        if controller_uid(raw) not in (None, job.uid):
            raise ExistsError(f"{what} belongs to another object.")
        metadata = {**action.body["metadata"], "resourceVersion": raw["metadata"]["resourceVersion"]}
        raw = await self._kube.patch(resource, job.namespace, action.name, {"metadata": metadata})
        self._children.reservations[action.scheduler].put(raw)

    async def _priority(self, body: Body) -> int | None:
        """The value of the priority class that a Workload names; None when it names none."""
        reference = body["spec"].get("priorityClassRef")
        if reference is None:
            return None
        try:
            found = await self._kube.get(PRIORITIES[reference["group"]], "", reference["name"])
        except NotFoundError as error:
            raise RefusedError(f"{reference['kind']} {reference['name']} does not exist: create it.") from error
        value: int = found["value"]
        return value

    async def flavors(self, names: Iterable[str]) -> dict[str, Object]:
        """The specs of these ResourceFlavors, without those that do not exist or may not be read. Raises ApiError."""
        found = {}
        for name in names:
            try:
                found[name] = (await self._kube.get(FLAVORS, "", name)).get("spec") or {}
            except (NotFoundError, RefusedError) as error:
                logger.warning("Could not read ResourceFlavor %s: %s", name, error.message)
        return found

    async def _report(self, action: ReportOutcome) -> None:
        """No attempt depends on what is reported to its scheduler: after a refusal it is reported again later."""
        resource, meta = SCHEDULERS[action.scheduler].resource, action.body["metadata"]
        assert resource is not None
        try:
            raw = await _unless_gone(self._kube.apply_status(resource, dict(action.body)))
            if raw is not None:
                self._children.reservations[action.scheduler].put(raw)
        except RefusedError as error:
            logger.warning("Could not report about %s %s: %s", resource.plural, meta["name"], error.message)

    async def _release(self, key: JobKey, action: Release) -> None:
        """As for support objects; a reservation that stays is seen, and released, at the next occasion."""
        resource = SCHEDULERS[action.scheduler].resource
        assert resource is not None
        if action.report is not None:
            await self._report(action.report)
        try:
            await _unless_gone(self._kube.delete(resource, key[0], action.name, action.uid))
            self._children.reservations[action.scheduler].forget(key, action.name)
        except RefusedError as error:
            logger.warning("Could not delete %s %s: %s", resource.plural, action.name, error.message)

    async def _create_token(self, action: CreateToken) -> None:
        """Secrets are not read: a name with the job's UID is no other job's."""
        token = {"token": secrets.token_hex(32)}
        with contextlib.suppress(ExistsError):
            await self._kube.create(SECRETS, dict(action.body) | {"stringData": token})


def _of(plan: Plan, kind: type[A]) -> list[A]:
    return [action for action in plan.actions if isinstance(action, kind)]


async def _tried(
    body: Body, write: Callable[P, Coroutine[Any, Any, None]], *args: P.args, **kwargs: P.kwargs
) -> _Refused | None:
    """The refusal of an object, if it was refused. Raises ApiError for every other error. `write` is called here: the
    operator may end before a task begins, and a coroutine that was made before would never be awaited."""
    try:
        await write(*args, **kwargs)
    except ApiError as error:
        if not _is_refusal(error):
            raise
        return _Refused(body["kind"], body["metadata"]["name"], error)
    return None


async def _refusals(calls: Iterable[Coroutine[Any, Any, _Refused | None]]) -> list[_Refused]:
    return [refused for refused in await _gather(calls) if refused is not None]


async def _gather(calls: Iterable[Coroutine[Any, Any, R]]) -> list[R]:
    """Run the calls concurrently; once all are done, returns their results or raises the first error."""
    results = await asyncio.gather(*calls, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return [result for result in results if not isinstance(result, BaseException)]


async def _unless_gone(call: Coroutine[Any, Any, Object]) -> Object | None:
    """The result of a deletion; None when the object, or the one with this UID, no longer exists."""
    try:
        return await call
    except (NotFoundError, ConflictError):
        return None


def _is_refusal(error: ApiError) -> bool:
    """Whether the API server works and rejects this one object. A webhook that is down rejects it with a 500, which
    only the message tells from other 500s."""
    if isinstance(error, RefusedError | ExistsError | NotFoundError):
        return True
    return isinstance(error, UnreachableError) and error.code == 500 and "webhook" in error.message


def _refusal(refused: _Refused, now: float, attempt: int, last: Refusal | None) -> Refusal:
    tries = last.tries + 1 if last is not None and last.attempt == attempt else 1
    what = f"{refused.kind} {refused.name}"
    return Refusal(_kind(refused), what, refused.error.message, now, attempt, tries)


def _kind(refused: _Refused) -> RefusalKind:
    error = refused.error
    if isinstance(error, ExistsError):
        return "name"
    if isinstance(error, NotFoundError) and refused.kind in ("PodGroup", "Workload"):
        return "gang"
    if error.code == 422 or error.reason in _PERMANENT_REASONS:
        return "permanent"
    # Quota and PodSecurity are both Forbidden, with the same details; only the message tells them apart.
    if "exceeded quota" in error.message:
        return "quota"
    return "permanent" if "violates PodSecurity" in error.message else "other"
