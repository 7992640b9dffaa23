"""The operator while its process and its way to the API server suffer.

Every test is the same life of a job: it starts, a trainer dies of 137 and the job restarts, and it is deleted. A fault
comes at a moment of it. Afterwards the chronicle must hold no broken invariant, nothing of the job may be left, and the
operator must have fallen silent.
"""

import contextlib
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import urllib3
from builders import MINIMAL
from chronicle import JOBS, Chronicle, leftovers
from operator_process import OperatorProcess
from servers.fault_proxy import Fault, FaultProxy, Rule, every
from servers.kubernetes import Cluster
from servers.kubernetes_api import Object
from servers.kubernetes_pods import finish, pods_of

NAME = "faulty"
PODS = 3
# Writes of a quiet life: 3 pods twice, 6 support objects, 9 states, 6 events, deletions, finalizers; the rest is slack.
QUIET_WRITES = 60
PATIENCE = 90
SIDE_BY_SIDE = 4


class Life:
    """One job in a namespace of its own."""

    def __init__(self, cluster: Cluster, namespace: str, name: str = NAME) -> None:
        self.cluster, self.namespace, self.name = cluster, namespace, name
        self.path = f"{JOBS.format(namespace)}/{name}"

    def create(self, **annotations: str) -> None:
        template = {"metadata": {"annotations": annotations}}
        topology = {"mode": "Separated"} | {role: {"podTemplate": template} for role in ("head", "trainer", "rollout")}
        spec = MINIMAL["spec"] | {"topology": topology, "runPolicy": {"backoffSeconds": 1, "gracePeriodSeconds": 5}}
        self.cluster.api.create(JOBS.format(self.namespace), MINIMAL | {"metadata": {"name": self.name}, "spec": spec})

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self.cluster.api.get(self.path).get("status", {})
        return found

    def pods(self) -> list[Object]:
        return pods_of(self.cluster.api, self.namespace, job=self.name)

    def recorded(self, attempt: int) -> None:
        """Wait until this attempt is on record."""
        self._wait(lambda: self._attempt() >= attempt, f"attempt {attempt} is on record")

    def trains(self, attempt: int) -> None:
        """Wait until this attempt is at work with all its pods."""

        def holds() -> bool:
            there = [pod["metadata"]["labels"]["dapo.io/attempt"] for pod in self.pods()]
            return self.status().get("phase") == "Training" and there == [str(attempt)] * PODS

        self._wait(holds, f"attempt {attempt} trains")

    def kill_trainer(self) -> None:
        """The trainer's container dies of 137."""
        (trainer,) = pods_of(self.cluster.api, self.namespace, job=self.name, role="trainer")
        finish(self.cluster.api, trainer, 137, reason="Error")

    def delete(self) -> None:
        """Delete the job, and wait until nothing of it is left."""
        self.cluster.api.delete(self.path)
        self.nothing_is_left()

    def nothing_is_left(self) -> None:
        """Wait until the job and everything of it is gone."""
        self._wait(lambda: not leftovers(self.cluster.api, self.namespace, self.name), "nothing is left")
        self._wait(lambda: not self.cluster.api.items(JOBS.format(self.namespace)), "the job is gone")

    def _attempt(self) -> int:
        attempts = self.status().get("attempts")
        return attempts[-1]["number"] if attempts else 0

    def _wait(self, holds: Callable[[], bool], what: str) -> None:
        try:
            self.cluster.wait_until(holds, what, PATIENCE)
        except TimeoutError as error:
            error.add_note(f"status {self.status()}")
            raise


@dataclass
class Stage:
    """A namespace with an operator of its own, a proxy before it, and one job's life; perhaps a second replica."""

    cluster: Cluster
    life: Life
    proxies: list[FaultProxy] = field(default_factory=list)
    operators: list[OperatorProcess] = field(default_factory=list)

    @property
    def proxy(self) -> FaultProxy:
        """Of the first replica."""
        return self.proxies[0]

    @property
    def operator(self) -> OperatorProcess:
        """The first replica."""
        return self.operators[0]

    def add_replica(self, folder: Path, **environment: str) -> None:
        """Start an operator behind a new proxy."""
        proxy = FaultProxy(self.cluster, f"{self.life.namespace}-{len(self.proxies)}").__enter__()
        self.proxies.append(proxy)
        process = OperatorProcess(proxy.kubeconfig, folder, namespaces=self.life.namespace, **environment)
        self.operators.append(process.start())

    def holder(self) -> str | None:
        """Who has the lease."""
        leases = self.cluster.api.items(f"/apis/coordination.k8s.io/v1/namespaces/{self.life.namespace}/leases")
        return leases[0]["spec"].get("holderIdentity") if leases else None

    def end(self) -> None:
        """End operators and proxies."""
        for operator in self.operators:
            operator.kill()
        for proxy in self.proxies:
            proxy.__exit__()


@contextlib.contextmanager
def stage(cluster: Cluster, namespace: str, folder: Path, replicas: int = 1) -> Iterator[Stage]:
    """Set it up, and check the chronicle at the end."""
    cluster.namespace(namespace)
    at = Stage(cluster, Life(cluster, namespace))
    with Chronicle(cluster, namespace) as chronicle:
        try:
            for number in range(replicas):
                lease = {"DAPO_LEASE": "dapo-operator", "DAPO_LEASE_NAMESPACE": namespace}
                at.add_replica(folder / str(number), DAPO_IDENTITY=f"r{number}", **(lease if replicas > 1 else {}))
                if replicas > 1:
                    cluster.wait_until(lambda: at.holder() == "r0", "the first replica leads")
                    cluster.wait_until(lambda: answers(at.operators[-1]), "the replica answers")
            yield at
        except BaseException as error:
            for operator in at.operators:
                error.add_note(operator.log.read_text()[-3000:])
            raise
        finally:
            at.end()
    chronicle.check()
    cluster.api.delete(f"/api/v1/namespaces/{namespace}")


def answers(operator: OperatorProcess) -> bool:
    """Whether it is up and says that it is well."""
    try:
        return operator.get("/healthz")[0] == 200
    except urllib3.exceptions.HTTPError:
        return False


def falls_silent(*proxies: FaultProxy) -> None:
    """No write for two seconds, within ten: a status that does not converge never lets this pass."""
    deadline = time.time() + 10
    while any(proxy.writes_since(time.time() - 2) for proxy in proxies):
        assert time.time() < deadline, [proxy.writes_since(time.time() - 2) for proxy in proxies]
        time.sleep(0.1)


RULES: dict[str, Rule] = {
    "answers of creations are lost": every(Fault(lost=True, after=True), method="POST", times=8),
    "answers of status writes are lost": every(Fault(lost=True, after=True), method="PUT", times=4),
    "creations are lost": every(Fault(lost=True), method="POST", times=8),
    "500": every(Fault(code=500), times=10),
    "429 storm": every(Fault(code=429, retry_after=1), times=15),
    "slow": every(Fault(delay=0.2)),
}


def among_faulty_answers(at: Stage, rule: Rule) -> None:
    at.proxy.rule = rule
    at.life.create()
    at.life.trains(1)
    at.life.kill_trainer()
    at.life.trains(2)
    falls_silent(at.proxy)
    at.life.delete()
    falls_silent(at.proxy)
    assert sum(seen.writes for seen in at.proxy.log) <= QUIET_WRITES
    assert at.operator.get("/healthz") == (200, "ok\n")
    assert 'dapo_operator_restarts_total{reason="Killed"} 1.0' in at.operator.get("/metrics")[1]


def killed(at: Stage) -> None:
    at.operator.kill()
    at.operator.start()


def paused(at: Stage) -> None:
    at.operator.signal(signal.SIGSTOP)
    time.sleep(2)
    at.operator.signal(signal.SIGCONT)


def partitioned(at: Stage) -> None:
    at.proxy.partition()
    time.sleep(2)
    at.proxy.heal()


def server_killed(at: Stage) -> None:
    at.cluster.kill_apiserver()
    at.cluster.restart()


def server_paused(at: Stage) -> None:
    at.cluster.pause()
    time.sleep(2)
    at.cluster.resume()


def with_blows_at_its_turns(at: Stage, blow: Callable[[Stage], None]) -> None:
    """One when the attempt is on record and its pods are not all there; one while an attempt ends."""
    at.life.create()
    at.life.recorded(1)
    blow(at)
    at.life.trains(1)
    at.life.kill_trainer()
    blow(at)
    at.life.trains(2)
    falls_silent(at.proxy)
    at.life.delete()
    falls_silent(at.proxy)


def unheard(at: Stage) -> None:
    """Watches fall silent, a pod fails and another is deleted, and then the watches are told 410."""
    at.life.create()
    at.life.trains(1)
    at.proxy.silence_watches()
    at.life.kill_trainer()
    (rollout,) = pods_of(at.cluster.api, at.life.namespace, job=NAME, role="rollout")
    at.cluster.api.delete(f"/api/v1/namespaces/{at.life.namespace}/pods/{rollout['metadata']['name']}")
    time.sleep(0.5)
    assert at.life.status()["phase"] == "Training"
    at.proxy.expire_watches()
    at.life.trains(2)
    at.life.delete()


def deleted_while_nobody_looks(at: Stage) -> None:
    at.life.create()
    at.life.trains(1)
    at.operator.kill()
    at.cluster.api.delete(at.life.path)
    time.sleep(0.5)
    assert len(at.life.pods()) == PODS, "the operator's finalizer holds the job"
    at.operator.start()
    at.life.nothing_is_left()


def followed_by_the_other(at: Stage, blow: str) -> None:
    """The leading one of two replicas is hit, and the other one brings the job through."""
    first = at.operator
    at.life.create()
    at.life.trains(1)
    assert not at.proxies[1].writes_since(0), "the second replica writes nothing"
    leading = ["dapo_operator_leader 1.0" in operator.get("/metrics")[1] for operator in at.operators]
    assert leading == [True, False]
    began = time.time()
    if blow == "killed":
        first.kill()
    elif blow == "stopped":
        assert first.stop() == 0
    elif blow == "paused":
        first.signal(signal.SIGSTOP)
    else:
        at.proxy.partition()
    at.life.kill_trainer()
    at.cluster.wait_until(lambda: at.proxies[1].writes_since(began), "the second replica acts", PATIENCE)
    took = at.proxies[1].writes_since(began)[0].at - began
    taken = time.time()
    if blow == "paused":
        first.signal(signal.SIGCONT)
    at.proxy.heal()
    at.life.trains(2)
    # The election promises 20 seconds, and 5 after a proper stop; a busy machine may add its own.
    assert took < (5 if blow == "stopped" else 20) + 20, f"the other replica acted after {took:.1f} s"
    if blow in ("paused", "partitioned"):
        assert first.process.wait(30) == 1, "a replica that lost the lease ends"
    assert not at.proxy.writes_since(taken), "and writes nothing more"
    at.life.delete()


@dataclass(frozen=True)
class Scene:
    """What is played, and before how many replicas."""

    play: Callable[[Stage], None]
    replicas: int = 1


# Each has an operator of its own and most of its time is waiting, so several go on side by side.
SCENES: dict[str, Scene] = {
    **{
        f"replica {blow}": Scene(partial(followed_by_the_other, blow=blow), 2)
        for blow in ("paused", "partitioned", "killed", "stopped")
    },
    **{name: Scene(partial(among_faulty_answers, rule=rule)) for name, rule in RULES.items()},
    **{blow.__name__: Scene(partial(with_blows_at_its_turns, blow=blow)) for blow in (killed, paused, partitioned)},
    "unheard": Scene(unheard),
    "deleted while nobody looks": Scene(deleted_while_nobody_looks),
}


@pytest.fixture(scope="module")
def played(
    request: pytest.FixtureRequest, cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, "Future[None]"]]:
    """The scenes that this run of pytest asks for, begun together."""

    folder = tmp_path_factory.mktemp("scenes")

    def play(name: str) -> None:
        namespace, scene = f"scene-{name.replace(' ', '-')}", SCENES[name]
        with stage(cluster, namespace, folder / namespace, scene.replicas) as at:
            scene.play(at)

    calls = [item.callspec for item in request.session.items if hasattr(item, "callspec")]
    asked = [call.params["scene"] for call in calls if "scene" in call.params]
    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        yield {name: pool.submit(play, name) for name in asked}


@pytest.mark.parametrize("scene", SCENES)
def test_a_life_goes_on(scene: str, played: dict[str, "Future[None]"]) -> None:
    played[scene].result()


@pytest.mark.parametrize("blow", [server_killed, server_paused], ids=["killed", "paused"])
def test_a_life_goes_on_when_the_api_server_suffers(
    blow: Callable[[Stage], None], cluster: Cluster, tmp_path: Path
) -> None:
    """By itself: all scenes share the API server."""
    with stage(cluster, blow.__name__.replace("_", "-"), tmp_path) as at:
        with_blows_at_its_turns(at, blow)
