"""Fifty jobs, failing pods, and operators that are killed and restarted, in virtual time and from one seed."""

import copy
import random
from collections.abc import Iterable
from typing import Any

from builders import MINIMAL
from fake_kube import FakeKube, Object
from simulated_invariants import Invariants
from simulated_nodes import SimulatedNodes
from simulated_operator import NAMESPACE, SPEC, Operator, OperatorDied, asyncio_run
from simulated_pods import SimulatedPods
from simulated_poison import BUGGY, poison
from simulated_queues import SimulatedQueues, gang_of

from dapo_core.jobspec.presets import merged
from dapo_operator.jobs.dapojob import JOBS, Job
from dapo_operator.kube.objects import error_of


class Simulation:
    """`step()` lets a second pass, and raises when something is as it must never be. `only_rollouts`: heads and
    trainers are spared, and so are the jobs; nothing happens but to rollouts, the operator and the API server."""

    def __init__(self, seed: int, jobs: int, only_rollouts: bool = False) -> None:
        self.only_rollouts = only_rollouts
        self.random = random.Random(seed)
        self.kube = FakeKube(seed, 1_800_000_000.0)
        self.kube.fault = self._fault
        self.nodes = SimulatedNodes(seed, self.kube.time)
        self.queues = SimulatedQueues(seed, self.kube)
        self.pods = SimulatedPods(self.kube, self.nodes, self.random, only_rollouts)
        self.invariants = Invariants(self.kube, self.pods)
        self.trouble = 0.0
        self.deaths = self.freezes = 0
        # By UID: the status before, and how often the operator had written it.
        self.frozen: dict[str, tuple[Object, int]] = {}
        self.lag = 0.0
        self.names = [f"job-{number}" for number in range(jobs)]
        for name in (*self.names, BUGGY):
            self.submit(name)
        self._parsed: dict[str, Job] = {}
        self.operator: Operator | None = Operator(self.kube, dice=self.random, parsed=self._parsed)
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
        self.pods.step(faults)
        if faults:
            self._people()
            self._operators()
        if self.operator is None and self.kube.time >= self.back_at:
            # Every other life is that of a newer version of the platform.
            self.operator = Operator(self.kube, f"t{self.deaths // 2}", self.random, parsed=self._parsed)
        if self.operator is not None:
            self._operate(self.operator)
        self.invariants.check(self.frozen)
        self.queues.check()

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
                pods = [pod for pod in self.pods.own() if pod["metadata"]["labels"]["dapo.io/job"] == name]
                pods = [pod for pod in pods if not self.pods.spares(pod)]
                if pods:
                    self.kube.mark_deleted(self.random.choice(pods))

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
            for pod in self.pods.own()
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
