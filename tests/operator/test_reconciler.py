"""What a job costs while all is well, and how many are worked on at once."""

import asyncio
import copy
from collections import Counter
from typing import Any

from builders import MINIMAL
from fake_kube import FakeKube, Object
from simulated_cluster import NAMESPACE, SPEC, Operator, asyncio_run

from dapo_core.jobspec.presets import merged
from dapo_operator.jobs.dapojob import JOBS
from dapo_operator.kube.objects import PODS, Resource
from dapo_operator.reconciler import CONCURRENT

PODS_OF_A_JOB = 4


class Counting(FakeKube):
    """Counts requests, reads too, and knows the most that were under way at once."""

    def __init__(self) -> None:
        super().__init__(1, 1_800_000_000.0)
        self.requests: Counter[str] = Counter()
        self.under_way = self.most = 0
        self.fault = self._count
        self.slow = False

    def _count(self, what: str, after: bool) -> None:
        if not after:
            self.requests[what] += 1

    async def get(self, resource: Resource, namespace: str, name: str) -> Object:
        self.requests[f"get {resource.plural}"] += 1
        return await super().get(resource, namespace, name)

    async def list(self, resource: Resource, namespace: str | None, *rest: Any) -> Any:
        self.requests[f"list {resource.plural}"] += 1
        return await super().list(resource, namespace, *rest)

    async def put_status(self, resource: Resource, body: Object) -> Object:
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        if self.slow:
            await asyncio.sleep(0)
        self.under_way -= 1
        return await super().put_status(resource, body)


def submitted(kube: Counting, *names: str) -> Operator:
    """An operator that has these jobs before it and has done nothing yet."""
    for name in names:
        raw = merged(copy.deepcopy(MINIMAL), {"spec": SPEC})
        raw["metadata"] = {"name": name, "namespace": NAMESPACE}
        asyncio_run(kube.create(JOBS, raw))
    operator = Operator(kube)
    kube.requests.clear()
    return operator


def work(kube: Counting, operator: Operator, seconds: int) -> None:
    """So much time passes."""
    for _ in range(seconds):
        kube.time += 1
        operator.hear(kube.time)
        operator.work()


def run_pods(kube: Counting) -> None:
    """Every pod runs and is ready."""
    container = {"name": "dapo", "ready": True, "state": {"running": {}}}
    ready = {"type": "Ready", "status": "True"}
    for pod in kube.of_kind("Pod"):
        status = {"phase": "Running", "conditions": [ready], "containerStatuses": [container]}
        kube.update(pod, spec={**pod["spec"], "nodeName": "node"}, status=status)


def test_what_a_job_costs_until_it_trains_and_while_it_does() -> None:
    kube = Counting()
    operator = submitted(kube, "first")
    work(kube, operator, 60)
    run_pods(kube)
    work(kube, operator, 4000)
    assert kube.requests == {
        "patch dapojobs": 1,
        "status": 2,
        "create pods": PODS_OF_A_JOB,
        "create services": 1,
        "create configmaps": 1,
        "create networkpolicies": 1,
        "create poddisruptionbudgets": 1,
        "create secrets": 1,
    }


def test_what_a_restart_costs() -> None:
    """One question whether all pods are gone; neither Secrets nor anything else that is there is asked for again."""
    kube = Counting()
    operator = submitted(kube, "first")
    work(kube, operator, 60)
    run_pods(kube)
    work(kube, operator, 60)
    kube.requests.clear()
    kube.remove((PODS.plural, NAMESPACE, "first-trainer-1-0"))
    for _ in range(2):  # the head, and then the others
        work(kube, operator, 5)
        for pod in kube.of_kind("Pod"):
            if "deletionTimestamp" in pod["metadata"]:
                kube.remove((PODS.plural, NAMESPACE, pod["metadata"]["name"]))
    work(kube, operator, 60)
    run_pods(kube)
    work(kube, operator, 60)
    deleted = kube.requests.pop("delete pods")
    assert deleted == PODS_OF_A_JOB - 1
    # It ends; it has ended, and another attempt starts; all its pods are ready.
    assert kube.requests == {"status": 3, "create pods": PODS_OF_A_JOB, "list pods": 1}


def test_only_so_many_jobs_are_reconciled_at_once() -> None:
    kube = Counting()
    operator = submitted(kube, *(f"job-{number}" for number in range(3 * CONCURRENT)))
    kube.slow = True

    async def reconcile_all() -> None:
        await asyncio.gather(*(reconciler.reconcile() for reconciler in operator.reconcilers.values()))

    asyncio_run(reconcile_all())
    assert kube.requests["create pods"] == 3 * CONCURRENT * PODS_OF_A_JOB
    assert kube.most <= CONCURRENT


def test_a_clock_that_is_put_back_holds_no_news_up() -> None:
    kube = Counting()
    operator = submitted(kube, "first")
    work(kube, operator, 60)
    run_pods(kube)
    work(kube, operator, 60)
    kube.time -= 5 * 3600
    kube.requests.clear()
    kube.remove((PODS.plural, NAMESPACE, "first-trainer-1-0"))
    work(kube, operator, 2)
    assert kube.requests == {"status": 1, "delete pods": 1}
