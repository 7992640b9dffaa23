"""Carries a plan out: first the status, so that an attempt is on record before its pods, then the children."""

import asyncio
import logging
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from dapo_core.naming import LABEL_JOB
from dapo_core.run.status import DAPOJobStatus
from dapo_operator.jobs.actions import (
    Action,
    AddFinalizer,
    ApplySupport,
    CreatePod,
    CreateToken,
    DeleteJob,
    DeletePod,
    Plan,
    RemoveFinalizer,
    TryPod,
)
from dapo_operator.jobs.job import FINALIZER, Job
from dapo_operator.jobs.observed import Refusal, RefusalKind, owner_of
from dapo_operator.kube.cache import JobKey, World
from dapo_operator.kube.client import Kube, Object
from dapo_operator.kube.errors import (
    ApiError,
    ConflictError,
    ExistsError,
    NotFoundError,
    RefusedError,
    UnreachableError,
)
from dapo_operator.kube.resources import JOBS, PODS, SECRETS, resource_of

logger = logging.getLogger(__name__)

_PERMANENT: Final = ("violates PodSecurity", "is invalid", "strict decoding error", "cannot be handled as a Pod")


class LeftoversError(Exception):
    """Pods are still there that no watch had told of: the plan was made from an old view."""


@dataclass
class Outcome:
    """What came of the actions: the first refusal, and whether a pod that was refused before would be taken now."""

    refusal: Refusal | None = None
    acceptable: bool = False
    created: int = 0


class Executor:
    """Writes for all jobs."""

    def __init__(self, kube: Kube, world: World) -> None:
        self._kube, self._world = kube, world

    async def read(self, key: JobKey) -> Object:
        """The job as the API server has it."""
        return await self._kube.get(JOBS, *key)

    async def hold(self, job: Job) -> Object:
        """Add the finalizer. Answers the job as it is then."""
        return await self._kube.patch(JOBS, job.namespace, job.name, _finalizers(job, [FINALIZER]))

    async def release(self, job: Job, raw: Object) -> None:
        """Take the finalizer away; other controllers' stay."""
        left = [each for each in raw["metadata"].get("finalizers", []) if each != FINALIZER]
        change = _finalizers(job, left) | {}
        change["metadata"]["resourceVersion"] = raw["metadata"]["resourceVersion"]
        await self._kube.patch(JOBS, job.namespace, job.name, change)

    async def confirm_alone(self, key: JobKey) -> None:
        """Before a further attempt: ask the API server itself whether all pods are gone. Raises LeftoversError."""
        found, version = await self._kube.list(PODS, key[0], f"{LABEL_JOB}={key[1]}")
        for raw in found:
            self._world.pods.put(raw)
        if found:
            raise LeftoversError(f"{len(found)} pods at version {version}")

    async def write_status(self, raw: Object, status: DAPOJobStatus) -> Object:
        """Replace the status. Answers the job as it is then. Raises ConflictError when it was written meanwhile."""
        meta = raw["metadata"]
        body = {
            "apiVersion": raw["apiVersion"],
            "kind": raw["kind"],
            "metadata": {key: meta[key] for key in ("name", "namespace", "uid", "resourceVersion")},
            "status": dumped(status),
        }
        return await self._kube.put_status(JOBS, body)

    async def act(self, key: JobKey, job: Job, plan: Plan, now: float, last: Refusal | None) -> Outcome:
        """Everything of a plan but the status and the finalizer. What is refused is part of the outcome; raises
        ApiError for everything else."""
        outcome = Outcome()
        by_kind = _sorted(plan.actions)
        await _all(self._delete_pod(key, action) for action in by_kind[DeletePod])
        attempt = plan.status.attempts[-1].number if plan.status.attempts else 0
        before = [self._support(action, job) for action in by_kind[ApplySupport]]
        before += [self._token(action, job) for action in by_kind[CreateToken]]
        refused = await _all(before)
        if not refused:
            pods = by_kind[CreatePod]
            refused = await _all(self._create_pod(action, job) for action in pods)
            outcome.created = len(pods) - len(refused)
        if tried := by_kind[TryPod]:
            refused = await _all(self._kube.create(PODS, dict(action.body), dry_run=True) for action in tried)
            outcome.acceptable = not refused
            attempt = last.attempt if last is not None else attempt
        if refused:
            outcome.refusal = _refusal(refused[0], now, attempt, last)
        for _ in by_kind[DeleteJob]:
            await _gone_is_fine(self._kube.delete(JOBS, job.namespace, job.name, job.uid))
        return outcome

    async def _delete_pod(self, key: JobKey, action: DeletePod) -> None:
        try:
            raw = await self._kube.delete(PODS, key[0], action.name, action.uid, action.grace_seconds)
        except (NotFoundError, ConflictError):
            return
        if raw.get("kind") == "Pod" and "deletionTimestamp" in raw["metadata"]:
            self._world.pods.put(raw)

    async def _create_pod(self, action: CreatePod, job: Job) -> None:
        body = dict(action.body)
        try:
            raw = await self._kube.create(PODS, body)
        except ExistsError:
            raw = await self._kube.get(PODS, job.namespace, body["metadata"]["name"])
            if owner_of(raw) != job.uid:
                # An earlier job's: the planner waits until it is gone.
                raise
        self._world.pods.put(raw)

    async def _support(self, action: ApplySupport, job: Job) -> None:
        body = dict(action.body)
        resource = resource_of(body["apiVersion"], body["kind"])
        meta = body["metadata"]
        there = self._world.support_of((job.namespace, job.name), job.uid).get((body["kind"], meta["name"]))
        if there is None:
            # Applying would take over an object of that name that is somebody else's.
            try:
                raw = await self._kube.create(resource, body)
            except ExistsError:
                raw = await self._kube.get(resource, job.namespace, meta["name"])
                if owner_of(raw) != job.uid:
                    raise
                raw = await self._kube.apply(resource, body)
        else:
            raw = await self._kube.apply(resource, body)
        self._world.support(body["kind"]).put(raw)

    async def _token(self, action: CreateToken, job: Job) -> None:
        token = {"token": secrets.token_hex(32)}
        try:
            await self._kube.create(SECRETS, dict(action.body) | {"stringData": token})
        except ExistsError:
            raw = await self._kube.get(SECRETS, job.namespace, action.body["metadata"]["name"])
            if owner_of(raw) != job.uid:
                raise


def dumped(status: DAPOJobStatus) -> Object:
    """The status as it is written."""
    return status.model_dump(mode="json", by_alias=True, exclude_none=True)


def _finalizers(job: Job, names: Sequence[str]) -> Object:
    return {"metadata": {"uid": job.uid, "finalizers": list(names)}}


def _sorted(actions: Sequence[Action]) -> dict[type[Any], list[Any]]:
    kinds: tuple[type[Any], ...] = (
        AddFinalizer, RemoveFinalizer, ApplySupport, CreateToken, CreatePod, TryPod, DeletePod, DeleteJob,
    )  # fmt: skip
    return {kind: [action for action in actions if isinstance(action, kind)] for kind in kinds}


async def _all(calls: Any) -> list[ApiError]:
    """Run them side by side. Answers what was refused, raises what else went wrong once all are done."""
    results = await asyncio.gather(*calls, return_exceptions=True)
    failed = [result for result in results if isinstance(result, BaseException)]
    refused = [error for error in failed if isinstance(error, ApiError) and _is_refusal(error)]
    other = [error for error in failed if error not in refused]
    if other:
        raise other[0]
    return refused


def _is_refusal(error: ApiError) -> bool:
    """Whether the API server itself works, and says no to this one object; a webhook that is down says so too."""
    if isinstance(error, RefusedError | ExistsError | NotFoundError):
        return True
    return isinstance(error, UnreachableError) and error.code == 500 and "webhook" in error.message


async def _gone_is_fine(call: Any) -> None:
    try:
        await call
    except (NotFoundError, ConflictError):
        return


def _refusal(error: ApiError, now: float, attempt: int, last: Refusal | None) -> Refusal:
    tries = last.tries + 1 if last is not None and last.attempt == attempt else 1
    return Refusal(_kind(error), _what(error), error.message, now, attempt, tries)


def _kind(error: ApiError) -> RefusalKind:
    if isinstance(error, ExistsError):
        return "name"
    if isinstance(error, NotFoundError):
        # A namespace that is going away says NotFound as well; then the job is going with it.
        return "gang"
    if "exceeded quota" in error.message:
        return "quota"
    return "permanent" if error.code == 422 or any(text in error.message for text in _PERMANENT) else "other"


def _what(error: ApiError) -> str:
    return "a pod" if "pods" in error.message.lower() else "an object of the job"
