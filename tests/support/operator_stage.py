"""One job's life in a namespace of its own, with operators and fault proxies of its own, and a chronicle of it."""

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import urllib3
from builders import MINIMAL
from chronicle import JOBS, Chronicle, leftovers
from operator_process import OperatorProcess
from patience import patient
from servers.fault_proxy import FaultProxy
from servers.kubernetes import Cluster
from servers.kubernetes_api import Object
from servers.kubernetes_pods import finish, pods_of

NAME = "faulty"
PODS = 3
PATIENCE = 90


class Life:
    """One job in a namespace of its own."""

    def __init__(self, cluster: Cluster, namespace: str, name: str = NAME) -> None:
        self.cluster, self.namespace, self.name = cluster, namespace, name
        self.path = f"{JOBS.format(namespace)}/{name}"

    def create(self, **trainer: str) -> None:
        """Submit it; `trainer`: annotations of its trainer's pod."""
        template = {"metadata": {"annotations": {f"tests.dapo.io/{key}": value for key, value in trainer.items()}}}
        topology = {"mode": "Separated", "trainer": {"podTemplate": template}}
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

    def trains(self, attempt: int, seconds: float = PATIENCE) -> None:
        """Wait until this attempt is at work with all its pods."""

        def holds() -> bool:
            there = [pod["metadata"]["labels"]["dapo.io/attempt"] for pod in self.pods()]
            return self.status().get("phase") == "Training" and there == [str(attempt)] * PODS

        self._wait(holds, f"attempt {attempt} trains", seconds)

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

    def _wait(self, holds: Callable[[], bool], what: str, seconds: float = PATIENCE) -> None:
        try:
            self.cluster.wait_until(holds, what, seconds)
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

    def followed(self, holder: str) -> float:
        """Wait until this replica has the lease. Answers the seconds that it took, less those that the machine, busy
        with other tests, did not give to this one either."""
        begun, lost = time.monotonic(), 0.0
        while self.holder() != holder:
            assert time.monotonic() - begun < patient(PATIENCE), f"{self.holder()} has the lease"
            asked = time.monotonic()
            time.sleep(0.1)
            lost += time.monotonic() - asked - 0.1
        return time.monotonic() - begun - lost

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
def stage(cluster: Cluster, namespace: str, folder: Path, replicas: int = 1, elected: bool = True) -> Iterator[Stage]:
    """Set it up, and check the chronicle at the end. Several replicas have an election unless `elected` is False."""
    cluster.namespace(namespace)
    at = Stage(cluster, Life(cluster, namespace))
    with Chronicle(cluster, namespace) as chronicle:
        try:
            for number in range(replicas):
                lease = {"DAPO_LEASE": "dapo-operator", "DAPO_LEASE_NAMESPACE": namespace}
                election = replicas > 1 and elected
                at.add_replica(folder / str(number), DAPO_IDENTITY=f"r{number}", **(lease if election else {}))
                if election:
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
    deadline = time.time() + patient(10)
    while any(proxy.writes_since(time.time() - 2) for proxy in proxies):
        assert time.time() < deadline, [proxy.writes_since(time.time() - 2) for proxy in proxies]
        time.sleep(0.1)


def lose_a_node(at: Stage) -> None:
    """The head loses its trainer at once. That nothing ends the trainer's pod shows later that its node is lost."""
    at.life.create(end="by-hand")
    at.life.trains(1)
    (head,) = pods_of(at.cluster.api, at.life.namespace, job=NAME, role="head")
    finish(at.cluster.api, head, 30, message='{"reason": "DistributedFault", "message": "An engine is gone."}')
    at.cluster.wait_until(lambda: len(at.life.pods()) == 1, "only the lost pod is left", PATIENCE)
    at.cluster.api.patch(at.life.path, {"spec": {"topology": {"trainer": {"podTemplate": None}}}})
    # Its grace period of 35 s, and a minute.
    at.life.trains(2, 2 * PATIENCE)
    status = at.life.status()
    assert (status["attempts"][0]["reason"], status["restartsCounted"]) == ("NodeLost", 0)
    at.life.delete()
