"""Fifty jobs, failing pods, and operators that are killed and restarted, in virtual time and from one seed."""

import copy
import random
from collections.abc import Iterable
from typing import Any

from builders import MINIMAL
from fake_kube import FakeKube, Object
from simulated_nodes import STEADY, SimulatedNodes
from simulated_operator import NAMESPACE, SPEC, Operator, OperatorDied, asyncio_run
from simulated_poison import BUGGY, poison
from simulated_queues import SimulatedQueues, gang_of

from dapo_core.jobspec.presets import merged
from dapo_core.naming import LABEL_ATTEMPT, LABEL_JOB, LABEL_ROLE, child_name
from dapo_operator.jobs.dapojob import JOBS
from dapo_operator.jobs.planner.rollout_lives import UNSEEN_SECONDS
from dapo_operator.kube.objects import PODS, error_of, timestamp


class Simulation:
    """`step()` lets a second pass; `check()` raises when something is as it must never be. `only_rollouts`: heads and
    trainers are spared, and so are the jobs; nothing happens but to rollouts, the operator and the API server."""

    def __init__(self, seed: int, jobs: int, only_rollouts: bool = False) -> None:
        self.only_rollouts = only_rollouts
        # By owner and name: the UID of a rollout pod, and since when it is there.
        self.lives: dict[tuple[str, str], tuple[str, float]] = {}
        # By UID of a trainer: the attempt whose head it has joined, and the one whose head it waits for.
        self.joined: dict[str, int] = {}
        self.waiting: dict[str, int] = {}
        self.stayed = 0
        self.random = random.Random(seed)
        self.kube = FakeKube(seed, 1_800_000_000.0)
        self.kube.fault = self._fault
        self.nodes = SimulatedNodes(seed, self.kube.time)
        self.queues = SimulatedQueues(seed, self.kube)
        self.trouble = 0.0
        self.deaths = self.freezes = self.hangs = 0
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
        for _ in range(min(seconds, 60)):
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
            elif phase == "Running" and self._is_in_place(pod) and self.random.random() < 0.5:
                self._stay(pod)
            elif phase == "Running" and faults and self.random.random() < (0.005 if self.only_rollouts else 0.0005):
                if not self._spares(pod):
                    self._hurt(pod)

    def _is_in_place(self, pod: Object) -> bool:
        return any(each["name"] == "DAPO_RESTART" for each in pod["spec"]["containers"][0]["env"])

    def _stay(self, pod: Object) -> None:
        """A trainer whose head has ended ends its processes and waits for the next one, which it then joins. Some are
        of an image that does not know that, and end."""
        uid = pod["metadata"]["uid"]
        if (number := self.waiting.get(uid)) is not None:
            if self._head_runs(pod, number):
                self.stayed += 1
                self.joined[uid] = self.waiting.pop(uid)
                self.kube.update(pod, status=self._started(pod))
            return
        number = self.joined.get(uid, int(pod["metadata"]["labels"][LABEL_ATTEMPT]))
        if self._head_runs(pod, number):
            self.joined[uid] = number
        elif uid in self.joined and self.random.random() < 0.2:
            self.kube.update(pod, status=_ended(30, "Error"))
        elif uid in self.joined and any(each["type"] == "Ready" for each in pod["status"]["conditions"]):
            self.waiting[uid] = number + 1
            self.kube.update(pod, status={**pod["status"], "conditions": []})

    def _head_runs(self, pod: Object, number: int) -> bool:
        name = child_name(pod["metadata"]["labels"]["dapo.io/job"], "head", number, 0)
        head = self.kube.objects.get((PODS.plural, NAMESPACE, name))
        return head is not None and head.get("status", {}).get("phase") == "Running"

    def end_a_driver(self) -> None:
        """It has lost a rank."""
        heads = [pod for pod in self.own_pods() if _is_head(pod) and pod.get("status", {}).get("phase") == "Running"]
        self.kube.update(self.random.choice(heads), status=_ended(30, "Error")) if heads else None

    def _spares(self, pod: Object) -> bool:
        return self.only_rollouts and pod["metadata"]["labels"][LABEL_ROLE] != "rollout"

    def _started(self, pod: Object) -> Object:
        """It runs: an image of a tag that is moved all the time."""
        status, image = _running(), pod["spec"]["containers"][0]["image"]
        digest = image.partition("@")[2] or f"sha256:{self.random.randrange(4)}"
        status["containerStatuses"][0]["imageID"] = f"{image.partition('@')[0]}@{digest}"
        return status

    def _hurt(self, pod: Object) -> None:
        match self.random.randrange(6):
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
            case 4 if pod["metadata"]["labels"][LABEL_ROLE] != "rollout":
                # A rank hangs, and the driver does not notice. What a rollout that hangs means, the driver decides.
                self.kube.update(pod, status=_silent(self.kube.time))
                self.hangs += 1
            case _:
                self.kube.update(pod, status=_ended(1, "Error"))

    def hung(self, job: str) -> list[str]:
        """The pods of a job whose ranks hang."""
        return [
            pod["metadata"]["name"]
            for pod in self.own_pods()
            if pod["metadata"]["labels"][LABEL_JOB] == job
            and any(each["type"] == "ContainersReady" for each in pod.get("status", {}).get("conditions", ()))
        ]

    def own_pods(self) -> list[Object]:
        """All pods but those of somebody else."""
        return [pod for pod in self.kube.of_kind("Pod") if "ownerReferences" in pod["metadata"]]

    def check(self) -> None:
        """What must hold at every moment."""
        jobs = {raw["metadata"]["uid"]: raw for raw in self.kube.of_kind("DAPOJob")}
        pods = self.own_pods()
        self._check_frozen(jobs)
        self._check_pinned(jobs, pods)
        self.queues.check()
        self._check_rollouts(jobs, pods)
        attempts: dict[str, set[int]] = {}
        heads = {_owner_of(pod): int(pod["metadata"]["labels"][LABEL_ATTEMPT]) for pod in pods if _is_head(pod)}
        for pod in pods:
            if (number := self._serves(pod, heads.get(_owner_of(pod)))) is not None:
                attempts.setdefault(_owner_of(pod), set()).add(number)
        for uid, numbers in attempts.items():
            assert len(numbers) == 1, f"two attempts' pods at once: {numbers} of {uid}"
            if (job := jobs.get(uid)) is not None:
                recorded = {attempt["number"] for attempt in job.get("status", {}).get("attempts", ())}
                assert numbers <= recorded, f"attempt {numbers} of {job['metadata']['name']} is not on record"

    def _serves(self, pod: Object, head: int | None) -> int | None:
        """The attempt of a pod: of a trainer that stayed the last it joined, until the head it waits for exists. None
        while there is no head: it has left one attempt, and the head of the next may not be created yet, or no more."""
        uid, number = pod["metadata"]["uid"], int(pod["metadata"]["labels"][LABEL_ATTEMPT])
        if (waits := self.waiting.get(uid)) is not None:
            return None if head is None else waits if waits == head else waits - 1
        return self.joined.get(uid, number)

    def _check_rollouts(self, jobs: dict[str, Object], pods: list[Object]) -> None:
        """The end of a rollout is no end of its attempt, and no name comes back."""
        for job in jobs.values():
            roles = {attempt.get("role") for attempt in job.get("status", {}).get("attempts", ())}
            assert "rollout" not in roles, f"a rollout ended an attempt of {job['metadata']['name']}"
        for pod in pods:
            meta = pod["metadata"]
            if meta["labels"][LABEL_ROLE] == "rollout":
                key = (meta["ownerReferences"][0]["uid"], meta["name"])
                uid, since = self.lives.setdefault(key, (meta["uid"], self.kube.time))
                if uid != meta["uid"]:
                    # A life that ended before the operator knew of it may be asked for again.
                    assert self.kube.time - since <= UNSEEN_SECONDS, f"the name {meta['name']} came back"
                    self.lives[key] = (meta["uid"], self.kube.time)

    def _check_pinned(self, jobs: dict[str, Object], pods: list[Object]) -> None:
        """An upgrade of the platform does not mix images or job files in one attempt."""
        for pod in pods:
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
        """A part of a day without faults: an hour in steps of a minute, and what is left in longer ones."""
        self.trouble = self.lag = 0.0
        for _ in range(60):
            self.step(faults=False, seconds=60)
        for _ in range(int((hours - 1.0) * 4)):
            self.step(faults=False, seconds=900)

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


def _owner_of(pod: Object) -> str:
    return str(pod["metadata"]["ownerReferences"][0]["uid"])


def _is_head(pod: Object) -> bool:
    return bool(pod["metadata"]["labels"][LABEL_ROLE] == "head")


def _condition(kind: str, reason: str = "") -> Object:
    return {"type": kind, "status": "True", "reason": reason}


def _running() -> Object:
    container = {"name": "dapo", "ready": True, "state": {"running": {}}}
    return {"phase": "Running", "conditions": [_condition("Ready")], "containerStatuses": [container]}


def _silent(now: float) -> Object:
    """It runs on, and its heartbeats have stopped."""
    status = _running()
    status["containerStatuses"][0]["ready"] = False
    unready = {"status": "False", "lastTransitionTime": timestamp(now)}
    return status | {"conditions": [{"type": "Ready", **unready}, {"type": "ContainersReady", **unready}]}


def _ended(code: int, reason: str) -> Object:
    container = {"name": "dapo", "ready": False, "state": {"terminated": {"exitCode": code, "reason": reason}}}
    return {"phase": "Failed", "conditions": [], "containerStatuses": [container]}
