"""Faults of `dapo chaos` for the pods of one DAPOJob, with the login and the rights of the user's kubeconfig.

Everything names the job: pods are chosen by their owner and deleted by their UID, the NetworkPolicy of an outage of the
stores selects its pods only and is owned by the DAPOJob, and only its own number of rollouts is changed.
"""

import asyncio
import contextlib
import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from dapo_core import stopped_processes
from dapo_core.cli.chaos import ChaosRequest, NoTargetError
from dapo_core.errors import StoreError
from dapo_core.naming import API_VERSION, KIND, LABEL_ATTEMPT, LABEL_JOB, LABEL_ROLE
from dapo_core.run.fault_outcomes import Sight
from dapo_core.run.fault_plan import EFFECTS, FaultKind, PlannedFault
from dapo_operator.jobs.dapojob import JOBS
from dapo_operator.jobs.observed import CONTAINER
from dapo_operator.kube.client import KubeClient
from dapo_operator.kube.connection import NoClusterError, connect
from dapo_operator.kube.objects import PODS, ApiError, NotFoundError, Object, Resource

POLICIES: Final = Resource("networking.k8s.io/v1", "networkpolicies")
REVIEWS: Final = Resource("authorization.k8s.io/v1", "selfsubjectaccessreviews")
# The address of the cluster's names; everything else outside the job is out of reach during an outage of the stores.
_NAMES: Final = [{"port": 53, "protocol": protocol} for protocol in ("UDP", "TCP")]
# Verb, group, resource and subresource.
Right = tuple[str, str, str, str]
# The program stops processes and ends at once; what an image has in the place of Python may not.
EXEC_SECONDS: Final = 30.0
# Which of the two verbs an exec over a WebSocket needs depends on the API server's version.
_EXEC: Final[tuple[Right, ...]] = (("get", "", "pods", "exec"), ("create", "", "pods", "exec"))
# Of each kind of fault; every one of them lists pods, too.
RIGHTS: Final[Mapping[FaultKind, tuple[Right, ...]]] = {
    FaultKind.KILL: (("delete", "", "pods", ""),),
    FaultKind.DRAIN: (("create", "", "pods", "eviction"),),
    FaultKind.WEDGE: _EXEC,
    FaultKind.PARTITION: _EXEC,
    FaultKind.SLOW: _EXEC,
    FaultKind.SCALE: (("patch", "dapo.io", "dapojobs", ""),),
    FaultKind.STORE: tuple((verb, "networking.k8s.io", "networkpolicies", "") for verb in ("create", "delete")),
}
# Which processes of a pod are stopped.
_STOPPED: Final[Mapping[FaultKind, str]] = {
    FaultKind.WEDGE: "engine",
    FaultKind.PARTITION: "all",
    FaultKind.SLOW: "all",
}


async def find_job(request: ChaosRequest) -> "JobOnCluster":
    """The job, and the user's right to do to it what is planned. Raises NoTargetError."""
    try:
        connection = await connect()
    except NoClusterError as error:
        raise NoTargetError(f"There is no local run {request.job}, and no cluster: {error}") from error
    kube = KubeClient(connection)
    target = JobOnCluster(kube, request.namespace or connection.namespace or "default", request.job)
    try:
        await target.check(request.kinds)
    except BaseException:
        await kube.close()
        raise
    return target


@dataclass
class JobOnCluster:
    """One DAPOJob as a target. `_effective`: the faults that are in effect, at most one of each kind, and what ends
    them."""

    kube: KubeClient
    namespace: str
    job: str
    _effective: dict[FaultKind, tuple[asyncio.Task[None], Callable[[], Awaitable[None]]]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.namespace}/{self.job}"

    async def check(self, kinds: frozenset[FaultKind]) -> None:
        """Whether the job exists and may be hit. Raises NoTargetError."""
        try:
            status = (await self.kube.get(JOBS, self.namespace, self.job)).get("status") or {}
            needed = [(kind, right) for kind in sorted(kinds) for right in RIGHTS[kind]]
            missing = [(kind, right) for kind, right in needed if not await self._may(right)]
        except NotFoundError:
            message = f"Namespace {self.namespace} has no DAPOJob {self.job}: name one with JOB and --namespace."
            raise NoTargetError(message) from None
        except ApiError as error:
            raise NoTargetError(error.message) from error
        if status.get("phase") in ("Succeeded", "Failed", "Suspended"):
            raise NoTargetError(f"{self.name} is {status['phase']}: it has no pods to hit.")
        if missing:
            wanted = "; ".join(f"--kind {kind} needs {_named(right)}" for kind, right in missing)
            raise NoTargetError(
                f"You lack rights in namespace {self.namespace}: {wanted}. Ask for it, or leave it out."
            )

    async def look(self) -> Sight:
        try:
            status = (await self.kube.get(JOBS, self.namespace, self.job)).get("status") or {}
        except ApiError as error:
            raise StoreError(error.message) from error
        ready, _, wanted = (status.get("pods") or "0/?").partition("/")
        phase = status.get("phase") or "Pending"
        return Sight(
            0.0,
            status.get("attempt") or 0,
            (status.get("progress") or {}).get("step"),
            phase,
            phase == "Training" and ready == wanted,
            int(ready),
        )

    async def inject(self, fault: PlannedFault) -> str:
        if fault.kind in self._effective:
            raise NoTargetError("the previous fault is still in effect")
        try:
            if fault.role is None:
                return await self._cut_off_stores(fault)
            if fault.kind is FaultKind.SCALE:
                return await self._scale(fault)
            return await self._hit_pod(fault)
        except ApiError as error:
            raise NoTargetError(error.message) from error

    async def restore(self) -> None:
        for task, end in list(self._effective.values()):
            task.cancel()
            with contextlib.suppress(NotFoundError):
                await end()
        self._effective.clear()

    async def close(self) -> None:
        await self.kube.close()

    async def _hit_pod(self, fault: PlannedFault) -> str:
        uid = (await self.kube.get(JOBS, self.namespace, self.job))["metadata"]["uid"]
        pods, _ = await self.kube.list(PODS, self.namespace, f"{LABEL_JOB}={self.job}")
        living = {pod["metadata"]["name"]: pod for pod in _newest(pods, uid) if _is_live(pod, fault)}
        name = fault.choose(list(living))
        if name is None:
            raise NoTargetError(f"no {fault.role} runs")
        uid = living[name]["metadata"]["uid"]
        if fault.kind is FaultKind.KILL:
            await self.kube.delete(PODS, self.namespace, name, uid, grace_seconds=0)
        elif fault.kind is FaultKind.DRAIN:
            options = {"preconditions": {"uid": uid}}
            body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}, "deleteOptions": options}
            await self.kube.submit(PODS.path(self.namespace, name, "eviction"), body)
        else:
            await self._stop_processes(name, fault)
        return name

    async def _stop_processes(self, pod: str, fault: PlannedFault) -> None:
        source, effect = inspect.getsource(stopped_processes), EFFECTS[fault.kind]
        command = ["python3", "-c", source, _STOPPED[fault.kind], f"{effect.seconds:g}", f"{effect.stopped:g}"]
        code, said = await self.kube.execute(self.namespace, pod, CONTAINER, command, EXEC_SECONDS)
        if code == stopped_processes.NOTHING_THERE:
            raise NoTargetError(f"{pod} has no engine")
        if code:
            raise NoTargetError(f"exec in {pod} ended with {code}: {said.strip()[-200:]}")

    async def _scale(self, fault: PlannedFault) -> str:
        job = await self.kube.get(JOBS, self.namespace, self.job)
        count = int(job["spec"]["topology"]["rollout"]["replicas"])
        least = max(1, job["spec"]["topology"]["rollout"].get("minReplicas") or 1)
        if count <= least:
            raise NoTargetError(f"the job has {count} of at least {least} rollouts")
        await self._set_rollouts(count - 1)
        self._later(fault.kind, lambda: self._set_rollouts(count))
        return f"{count} to {count - 1} rollouts"

    async def _set_rollouts(self, count: int) -> None:
        change = {"spec": {"topology": {"rollout": {"replicas": count}}}}
        await self.kube.patch(JOBS, self.namespace, self.job, change)

    async def _cut_off_stores(self, fault: PlannedFault) -> str:
        job = await self.kube.get(JOBS, self.namespace, self.job)
        body = network_policy(self.job, self.namespace, job["metadata"]["uid"])
        await self.kube.create(POLICIES, body)

        async def end() -> None:
            await self.kube.delete(POLICIES, self.namespace, body["metadata"]["name"])

        self._later(fault.kind, end)
        return "all pods"

    def _later(self, kind: FaultKind, end: Callable[[], Awaitable[None]]) -> None:
        """End what is in effect after the seconds of its kind; `restore` tries again what fails."""

        async def wait() -> None:
            await asyncio.sleep(EFFECTS[kind].seconds)
            with contextlib.suppress(ApiError):
                await end()
                del self._effective[kind]

        self._effective[kind] = asyncio.create_task(wait()), end

    async def _may(self, right: Right) -> bool:
        verb, group, resource, subresource = right
        asked = {"namespace": self.namespace, "verb": verb, "group": group, "resource": resource}
        review = {
            "apiVersion": REVIEWS.api_version,
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": asked | ({"subresource": subresource} if subresource else {})},
        }
        answer = await self.kube.submit(REVIEWS.path(None), review)
        return bool(answer["status"]["allowed"])


def network_policy(job: str, namespace: str, uid: str) -> Object:
    """While it exists the job's pods open connections only to one another and to the cluster's names. It goes with the
    job, if nobody removes it."""
    own = {"matchLabels": {LABEL_JOB: job}}
    owner = {"apiVersion": API_VERSION, "kind": KIND, "name": job, "uid": uid}
    return {
        "apiVersion": POLICIES.api_version,
        "kind": "NetworkPolicy",
        "metadata": {"name": f"{job}-chaos", "namespace": namespace, "ownerReferences": [owner]},
        "spec": {
            "podSelector": own,
            "policyTypes": ["Egress"],
            "egress": [{"to": [{"podSelector": own}]}, {"ports": _NAMES}],
        },
    }


def _newest(pods: list[Object], job_uid: str) -> list[Object]:
    """Those of the newest attempt. Anybody in the namespace may give a pod the job's labels: its own are those that
    belong to the DAPOJob."""
    numbered = [
        (int(number), pod)
        for pod in pods
        if (number := pod["metadata"]["labels"].get(LABEL_ATTEMPT, "")).isdecimal()
        and any(owner.get("uid") == job_uid for owner in pod["metadata"].get("ownerReferences") or ())
    ]
    newest = max((number for number, _ in numbered), default=0)
    return [pod for number, pod in numbered if number == newest]


def _is_live(pod: Object, fault: PlannedFault) -> bool:
    meta = pod["metadata"]
    running = pod.get("status", {}).get("phase") == "Running" and "deletionTimestamp" not in meta
    return running and meta["labels"].get(LABEL_ROLE) == fault.role


def _named(right: Right) -> str:
    verb, group, resource, subresource = right
    return f"`{verb}` of {'/'.join(filter(None, (resource, subresource)))}{f' ({group})' if group else ''}"
