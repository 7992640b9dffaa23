"""Fifty jobs, failing pods, and operators that are killed and restarted, in virtual time and from one seed."""

import asyncio
import copy
import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from builders import MINIMAL
from fake_kube import FakeKube, Object
from simulated_nodes import STEADY, SimulatedNodes
from simulated_poison import BUGGY, Turns, poison, reconciler_class
from simulated_queues import RESERVED, SimulatedQueues, cache_of, gang_of, reservation_resources

from dapo_core.jobspec.presets import merged
from dapo_core.naming import LABEL_ATTEMPT, LABEL_ROLE
from dapo_operator.children import WATCHED, Children, JobKey
from dapo_operator.executor import Executor
from dapo_operator.jobs.builders.common import Site
from dapo_operator.jobs.dapojob import JOBS
from dapo_operator.jobs.planner.rollout_lives import UNSEEN_SECONDS
from dapo_operator.kube.api_errors import ApiError, error_of
from dapo_operator.kube.informer import report
from dapo_operator.kube.objects import PODS, ObjectReference, Resource
from dapo_operator.metadata_store import MetadataStore
from dapo_operator.node_cache import NodeCache
from dapo_operator.reconciler import Reconciler, Shared
from dapo_operator.telemetry.instrumentation import Telemetry

NAMESPACE = "team"
KEPT_EVENTS = 20_000
SPEC = {
    "topology": {"mode": "Separated", "rollout": {"replicas": 2}},
    "runPolicy": {"gracePeriodSeconds": 20, "startTimeoutSeconds": 300, "backoffSeconds": 1, "maxRestarts": 1000},
}


class OperatorDied(BaseException):
    """The process is gone in the middle of what it did."""


@dataclass
class Posted:
    """The reasons of the events that were posted."""

    reasons: list[str] = field(default_factory=list)

    def post(self, about: ObjectReference, kind: str, reason: str, message: str) -> None:
        """Keep the reason."""
        self.reasons.append(reason)


@dataclass
class Operator:
    """One life of an operator process: what it knows is gone when it dies."""

    kube: FakeKube
    image: str = "t"
    dice: random.Random = field(default_factory=random.Random)
    reconcilers: dict[JobKey, Reconciler] = field(default_factory=dict)
    due: dict[JobKey, float] = field(default_factory=dict)
    seen: int = 0
    turns: Turns = field(default_factory=Turns)
    events: Posted = field(default_factory=Posted)

    def __post_init__(self) -> None:
        self.children = Children(self._wake)
        self.nodes = NodeCache(self.children.node_changed)
        store = MetadataStore(None, self.kube.now)
        executor = Executor(self.kube, self.children)  # type: ignore[arg-type]
        site, telemetry = Site(image=self.image), Telemetry()
        self.shared = Shared(
            executor, self.children, store, self.events, site, self.kube.now, telemetry, self.nodes, self.dice
        )
        self.relist()

    def relist(self) -> None:
        """A start, or a watch that got 410: only what exists now is known."""
        self.seen = len(self.kube.events)
        version = str(10**9)
        for kind, resource in (("Pod", PODS), *WATCHED.items()):
            cache = self.children.pods if kind == "Pod" else self.children.support(kind)
            version = asyncio_run(self.kube.list(resource, None))[1]
            for raw in self.kube.of_kind(kind):
                report(cache.put, raw, resource)
            cache.keep({raw["metadata"]["uid"] for raw in self.kube.of_kind(kind)}, None, version)
        for name, resource in reservation_resources():
            reserved = [raw for kind in RESERVED for raw in self.kube.of_kind(kind) if _is_of(raw, resource)]
            reservations = self.children.reservations[name]
            for raw in reserved:
                report(reservations.put, raw, resource)
            reservations.keep({raw["metadata"]["uid"] for raw in reserved}, None, version)
        for raw in self.kube.of_kind("DAPOJob"):
            self._job("MODIFIED", raw)

    def hear(self, until: float) -> None:
        """The watch events up to a moment, in order."""
        events = self.kube.events
        while self.seen < len(events) and events[self.seen][0] <= until:
            _, kind, raw = events[self.seen]
            self.seen += 1
            if raw["kind"] == "DAPOJob":
                self._job(kind, raw)
            elif raw["kind"] in ("Pod", *WATCHED):
                cache: Any = self.children.pods if raw["kind"] == "Pod" else self.children.support(raw["kind"])
                report(cache.drop if kind == "DELETED" else cache.put, raw, PODS)
            elif raw["kind"] in RESERVED:
                reservations = cache_of(self.children, raw)
                report(reservations.drop if kind == "DELETED" else reservations.put, raw, PODS)
        if self.seen > KEPT_EVENTS:
            del events[: self.seen]
            self.seen = 0

    def pass_time(self, seconds: float) -> None:
        """Some seconds without a fault: the watch tells all that happened, and pods that are deleted are gone after."""
        self.kube.time += seconds
        self.hear(self.kube.time)
        self.work()
        for pod in self.kube.of_kind("Pod"):
            if "deletionTimestamp" in pod["metadata"]:
                self.kube.remove((PODS.plural, NAMESPACE, pod["metadata"]["name"]))

    def work(self) -> None:
        """One turn of every reconciler that was woken, or whose time has come."""
        for key in [key for key, at in self.due.items() if at <= self.kube.now()]:
            reconciler = self.reconcilers.get(key)
            if reconciler is None or reconciler.gone:
                self.due.pop(key, None)
                self.reconcilers.pop(key, None)
                continue
            self.due[key] = float("inf")
            self.turns.take(key, self.kube.now())
            wait = asyncio_run(reconciler.reconcile())
            self.due[key] = min(self.due.get(key, float("inf")), self.kube.now() + wait)

    def _wake(self, key: JobKey) -> None:
        self.due[key] = self.kube.now()

    def _job(self, kind: str, raw: Object) -> None:
        key = (raw["metadata"]["namespace"], raw["metadata"]["name"])
        reconciler = self.reconcilers.get(key)
        if reconciler is not None and reconciler.state.uid != raw["metadata"]["uid"]:
            reconciler = None
        if kind == "DELETED":
            self.reconcilers.pop(key, None)
        elif reconciler is None:
            self.reconcilers[key] = reconciler_class(key)(key, self.shared, raw)
        else:
            reconciler.update(raw)
        self._wake(key)


def _is_of(raw: Object, resource: Resource) -> bool:
    return bool(raw["apiVersion"] == resource.api_version)


def asyncio_run(call: Any) -> Any:
    """Run to the end; nothing of the fake ever waits."""
    return _LOOP.run_until_complete(call)


_LOOP = asyncio.new_event_loop()


class Simulation:
    """`step()` lets a second pass; `check()` raises when something is as it must never be. `only_rollouts`: heads and
    trainers are spared, and so are the jobs; nothing happens but to rollouts, the operator and the API server."""

    def __init__(self, seed: int, jobs: int, only_rollouts: bool = False) -> None:
        self.only_rollouts = only_rollouts
        # By owner and name: the UID of a rollout pod, and since when it is there.
        self.lives: dict[tuple[str, str], tuple[str, float]] = {}
        self.random = random.Random(seed)
        self.kube = FakeKube(seed, 1_800_000_000.0)
        self.kube.fault = self._fault
        self.nodes = SimulatedNodes(seed, self.kube.time)
        self.queues = SimulatedQueues(seed, self.kube)
        self.trouble = 0.0
        self.deaths = self.freezes = 0
        # By UID: the status before, and how often the operator had written it.
        self.frozen: dict[str, tuple[Object, int]] = {}
        self.lag = 0.0
        self.names = [f"job-{number}" for number in range(jobs)]
        for name in (*self.names, BUGGY):
            self.submit(name)
        self.operator: Operator | None = Operator(self.kube, dice=self.random)
        self.back_at = 0.0

    def submit(self, name: str) -> None:
        """Somebody applies a job."""
        raw = merged(merged(copy.deepcopy(MINIMAL), {"spec": SPEC}), {"spec": gang_of(name)})
        if name.endswith("0"):
            raw = merged(raw, {"spec": {"runPolicy": {"disruption": "Deny"}}})
        raw["metadata"] = {"name": name, "namespace": NAMESPACE}
        asyncio_run(self._quietly(self.kube.create(JOBS, raw)))

    def step(self, faults: bool = True, seconds: int = 1) -> None:
        """A second, or a few in which nothing happens: people, the cluster, the operator."""
        self.kube.time += seconds
        for _ in range(seconds):
            self.nodes.step(faults)
            self.queues.step(faults and not self.only_rollouts)
        self._run_pods(faults)
        if faults:
            self._people()
            self._operators()
        if self.operator is None and self.kube.time >= self.back_at:
            # Every other life is that of a newer version of the platform.
            self.operator = Operator(self.kube, f"t{self.deaths // 2}", self.random)
        if self.operator is not None:
            self._operate(self.operator)
        self.check()

    def _operate(self, operator: Operator) -> None:
        try:
            operator.hear(self.kube.time - self.lag)
            self.nodes.tell(operator.nodes)
            operator.work()
        except OperatorDied:
            self._kill()

    def _kill(self) -> None:
        self.deaths += 1
        self.operator = None
        self.back_at = self.kube.time + self.random.choice((0, 1, 5, 30))

    def _operators(self) -> None:
        dice = self.random.random()
        if self.operator is None:
            return
        if dice < 0.01:
            self._kill()
        elif dice < 0.03:
            # 410: everything between is lost, deletions too.
            self.operator.relist()
        elif dice < 0.06:
            self.lag = self.random.choice((0.0, 0.0, 1.0, 3.0, 10.0))
        elif dice < 0.10:
            self.trouble = self.random.choice((0.0, 0.0, 0.0, 0.05, 0.5))

    def _fault(self, what: str, after: bool) -> None:
        """The API server's moods, and the operator's sudden death, before or after a write took effect."""
        if self.random.random() >= self.trouble:
            return
        kind = self.random.randrange(20)
        if kind == 0 and self.operator is not None:
            raise OperatorDied
        if kind < 10 and not after:
            raise error_of(429, {"message": f"too many requests: {what}"})
        raise error_of(503, {"message": f"no answer to {what}"})

    def _people(self) -> None:
        if self.random.random() < 0.05:
            self._person(self.random.choice(self.names))
        if self.random.random() < 0.02 and not self.only_rollouts:
            poison(self.kube, self.random)
        if self.random.random() < 0.02 and not self.only_rollouts:
            self._other_version(self.random.choice(self.names))

    def _other_version(self, name: str) -> None:
        """An operator of another version writes a status that this one cannot read, or was the one to read it."""
        raw = self.kube.objects.get((JOBS.plural, NAMESPACE, name))
        if raw is None:
            return
        meta, status = raw["metadata"], raw.get("status", {})
        if meta["uid"] in self.frozen:
            self._thaw(meta["uid"])
        elif status.get("phase") == "Training" and "deletionTimestamp" not in meta:
            if self.random.random() < 0.5:
                unknown = {**status["conditions"][0], "type": "Novel"}
                changed = {**status, "conditions": [*status["conditions"], unknown]}
            else:
                newest = status["attempts"][-1]
                earlier = [{**newest, "number": newest["number"] - ago} for ago in range(10, 0, -1)]
                changed = {**status, "attempts": [*earlier, newest]}
            self.kube.update(raw, status=changed)
            self.frozen[meta["uid"]] = (status, self.kube.writes.get(meta["uid"], 0))
            self.freezes += 1

    def _thaw(self, uid: str) -> None:
        status, _ = self.frozen.pop(uid)
        for raw in self.kube.of_kind("DAPOJob"):
            if raw["metadata"]["uid"] == uid:
                self.kube.update(raw, status=status)

    def _person(self, name: str) -> None:
        raw = self.kube.objects.get((JOBS.plural, NAMESPACE, name))
        if raw is None:
            self.submit(name)
            return
        spec = raw["spec"]
        match self.random.choice((2, 5)) if self.only_rollouts else self.random.randrange(6):
            case 0 | 1:
                self.kube.update(raw, spec={**spec, "suspend": not spec.get("suspend", False)})
            case 2:
                replicas = self.random.randint(1, 3)
                rollout = {"replicas": replicas, "minReplicas": self.random.choice((None, *range(replicas + 1)))}
                self.kube.update(raw, spec=merged(spec, {"topology": {"rollout": rollout}}))
            case 3:
                self.kube.mark_deleted(raw)
            case 4:
                bad = {"podTemplate": {"spec": {"hostname": "x"} if self.random.random() < 0.5 else {}}}
                topology = {**spec["topology"], "trainer": bad}
                self.kube.update(raw, spec={**spec, "topology": topology})
            case _:
                pods = [pod for pod in self.own_pods() if pod["metadata"]["labels"]["dapo.io/job"] == name]
                pods = [pod for pod in pods if not self._spares(pod)]
                if pods:
                    self.kube.mark_deleted(self.random.choice(pods))

    def _run_pods(self, faults: bool) -> None:
        for pod in self.own_pods():
            meta, phase = pod["metadata"], pod.get("status", {}).get("phase", "Pending")
            if (node := pod["spec"].get("nodeName")) is not None and self.nodes.is_down(node):
                continue
            if "deletionTimestamp" in meta:
                if meta["name"] not in self.kube.stuck and self.random.random() < 0.3:
                    self.kube.remove((PODS.plural, NAMESPACE, meta["name"]))
            elif phase not in ("Running", "Succeeded", "Failed") and self.random.random() < 0.3:
                node = STEADY if self._spares(pod) else self.nodes.place()
                self.kube.update(pod, spec={**pod["spec"], "nodeName": node}, status=self._started(pod))
            elif phase == "Running" and "conditions" not in pod["status"]:
                self.kube.update(pod, status=self._started(pod))
            elif phase == "Running" and faults and self.random.random() < (0.005 if self.only_rollouts else 0.0005):
                if not self._spares(pod):
                    self._hurt(pod)

    def _spares(self, pod: Object) -> bool:
        return self.only_rollouts and pod["metadata"]["labels"][LABEL_ROLE] != "rollout"

    def _started(self, pod: Object) -> Object:
        """It runs: an image of a tag that is moved all the time."""
        status, image = _running(), pod["spec"]["containers"][0]["image"]
        digest = image.partition("@")[2] or f"sha256:{self.random.randrange(4)}"
        status["containerStatuses"][0]["imageID"] = f"{image.partition('@')[0]}@{digest}"
        return status

    def _hurt(self, pod: Object) -> None:
        match self.random.randrange(5):
            case 0:
                self.kube.update(pod, status=_ended(137, "OOMKilled"))
            case 1:
                self.kube.update(pod, status=_ended(30, "Error"))
            case 2:
                status = _running() | {"conditions": [_condition("DisruptionTarget", "EvictionByEvictionAPI")]}
                self.kube.update(pod, status=status)
                self.kube.mark_deleted(self.kube.objects[(PODS.plural, NAMESPACE, pod["metadata"]["name"])])
            case 3:
                # Its node is lost: only a forced deletion removes it.
                self.kube.stuck.add(pod["metadata"]["name"])
                self.kube.mark_deleted(pod)
            case _:
                self.kube.update(pod, status=_ended(1, "Error"))

    def own_pods(self) -> list[Object]:
        """All pods but those of somebody else."""
        return [pod for pod in self.kube.of_kind("Pod") if "ownerReferences" in pod["metadata"]]

    def check(self) -> None:
        """What must hold at every moment."""
        jobs = {raw["metadata"]["uid"]: raw for raw in self.kube.of_kind("DAPOJob")}
        self._check_frozen(jobs)
        self._check_pinned(jobs)
        self.queues.check()
        self._check_rollouts(jobs)
        attempts: dict[str, set[int]] = {}
        for pod in self.own_pods():
            owner = pod["metadata"]["ownerReferences"][0]["uid"]
            attempts.setdefault(owner, set()).add(int(pod["metadata"]["labels"][LABEL_ATTEMPT]))
        for uid, numbers in attempts.items():
            assert len(numbers) == 1, f"two attempts' pods at once: {numbers} of {uid}"
            if (job := jobs.get(uid)) is not None:
                recorded = {attempt["number"] for attempt in job.get("status", {}).get("attempts", ())}
                assert numbers <= recorded, f"attempt {numbers} of {job['metadata']['name']} is not on record"

    def _check_rollouts(self, jobs: dict[str, Object]) -> None:
        """The end of a rollout is no end of its attempt, and no name comes back."""
        for job in jobs.values():
            roles = {attempt.get("role") for attempt in job.get("status", {}).get("attempts", ())}
            assert "rollout" not in roles, f"a rollout ended an attempt of {job['metadata']['name']}"
        for pod in self.own_pods():
            meta = pod["metadata"]
            if meta["labels"][LABEL_ROLE] == "rollout":
                key = (meta["ownerReferences"][0]["uid"], meta["name"])
                uid, since = self.lives.setdefault(key, (meta["uid"], self.kube.time))
                if uid != meta["uid"]:
                    # A life that ended before the operator knew of it may be asked for again.
                    assert self.kube.time - since <= UNSEEN_SECONDS, f"the name {meta['name']} came back"
                    self.lives[key] = (meta["uid"], self.kube.time)

    def _check_pinned(self, jobs: dict[str, Object]) -> None:
        """An upgrade of the platform does not mix images or job files in one attempt."""
        for pod in self.own_pods():
            job = jobs.get(pod["metadata"]["ownerReferences"][0]["uid"])
            pinned = (job or {}).get("status", {}).get("pinned")
            if pinned is not None:
                [image] = {container["image"] for container in pod["spec"]["containers"]}
                known = {pinned["image"], *(pinned.get("images") or {}).values()}
                assert image in known, f"{pod['metadata']['name']} has image {image}, not one of {known}"
                [name] = {volume["configMap"]["name"] for volume in pod["spec"]["volumes"] if "configMap" in volume}
                assert name.endswith(pinned["revision"]), f"{pod['metadata']['name']} reads {name}"
                assert ("configmaps", NAMESPACE, name) in self.kube.objects, f"{name} does not exist"

    def _check_frozen(self, jobs: dict[str, Object]) -> None:
        """A job whose status cannot be read keeps its pods and its status, unless it is deleted."""
        deleted, self.kube.deletions = self.kube.deletions, []
        for uid, (_, writes) in self.frozen.items():
            if (job := jobs.get(uid)) is None or "deletionTimestamp" in job["metadata"]:
                continue
            assert self.kube.writes.get(uid, 0) == writes, f"the status of {job['metadata']['name']} was replaced"
            for raw in deleted:
                owners = {owner["uid"] for owner in raw["metadata"].get("ownerReferences", ())}
                assert uid not in owners, f"{raw['metadata']['name']} of a frozen job was deleted"

    def rest(self, hours: float) -> None:
        """A part of a day without faults, in steps of a minute."""
        self.trouble = self.lag = 0.0
        for _ in range(int(hours * 60)):
            self.step(faults=False, seconds=60)

    def quieten(self, seconds: int) -> None:
        """No more faults, and time for everything to become as it should be."""
        self.trouble = self.lag = 0.0
        for uid in list(self.frozen):
            self._thaw(uid)
        self.nodes.heal()
        for _ in range(seconds):
            self.step(faults=False)

    def pods_that_should_move(self) -> list[str]:
        """Pods on nodes that are drained, of jobs that may be moved."""
        deny = {
            raw["metadata"]["name"] for raw in self.kube.of_kind("DAPOJob") if raw["metadata"]["name"].endswith("0")
        }
        return [
            pod["metadata"]["name"]
            for pod in self.own_pods()
            if pod["metadata"]["labels"]["dapo.io/job"] not in deny
            and self.nodes.leaves(pod["spec"].get("nodeName", ""))
            and pod["status"]["phase"] == "Running"
        ]

    async def _quietly(self, call: Any) -> None:
        trouble, self.trouble = self.trouble, 0.0
        await call
        self.trouble = trouble

    def statuses(self) -> Iterable[tuple[Object, str]]:
        """Each job and its phase, without the one that the operator cannot work on."""
        jobs = (raw for raw in self.kube.of_kind("DAPOJob") if raw["metadata"]["name"] != BUGGY)
        return ((raw, raw.get("status", {}).get("phase", "")) for raw in jobs)


def _condition(kind: str, reason: str = "") -> Object:
    return {"type": kind, "status": "True", "reason": reason}


def _running() -> Object:
    container = {"name": "dapo", "ready": True, "state": {"running": {}}}
    return {"phase": "Running", "conditions": [_condition("Ready")], "containerStatuses": [container]}


def _ended(code: int, reason: str) -> Object:
    container = {"name": "dapo", "ready": False, "state": {"terminated": {"exitCode": code, "reason": reason}}}
    return {"phase": "Failed", "conditions": [], "containerStatuses": [container]}


__all__ = ["ApiError", "Operator", "OperatorDied", "Simulation"]
