"""What a job costs while all is well, and how many are worked on at once."""

import asyncio
import copy
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from builders import MINIMAL
from fake_kube import FakeKube, Object
from simulated_operator import NAMESPACE, SPEC, Operator, asyncio_run
from virtual_time import now, run_virtual

from dapo_core.jobspec.presets import merged
from dapo_core.run.guards import Alert
from dapo_core.run.metrics import ENTROPY
from dapo_core.run.status import CheckpointRef, Progress
from dapo_operator.jobs.dapojob import JOBS
from dapo_operator.kube.objects import PODS, Resource, error_of
from dapo_operator.metadata_store import RunSnapshot
from dapo_operator.shared import CONCURRENT

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

    async def get(self, resource: Resource, namespace: str, name: str, sub: str = "", **query: str) -> Object:
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


@pytest.mark.parametrize("manager", ["kueue.x-k8s.io/multikueue", "example.org/other"])
def test_b14_a_job_of_another_controller_is_left_alone(manager: str) -> None:
    """Its status is a copy of another cluster's: whoever writes into it, too, writes for ever."""
    kube = Counting()
    operator = submitted(kube, "first")
    [raw] = kube.of_kind("DAPOJob")
    kube.update(raw, spec={**raw["spec"], "managedBy": manager})
    kube.requests.clear()
    work(kube, operator, 30)
    assert kube.requests == Counter()
    kube.update(kube.of_kind("DAPOJob")[0], status={"phase": "Training", "attempts": "of another version"})
    work(kube, operator, 30)
    assert kube.requests == Counter()
    kube.mark_deleted(kube.of_kind("DAPOJob")[0])
    assert kube.of_kind("DAPOJob") == [], "it waits for nobody here"


def test_the_operators_own_name_is_no_other_controller() -> None:
    kube = Counting()
    operator = submitted(kube, "first")
    [raw] = kube.of_kind("DAPOJob")
    kube.update(raw, spec={**raw["spec"], "managedBy": "dapo.io/operator"})
    work(kube, operator, 5)
    assert len(kube.of_kind("Pod")) == PODS_OF_A_JOB


@pytest.mark.parametrize("end", ["deleted", "crashed"])
def test_what_the_repair_of_a_rollout_costs(end: str) -> None:
    """Four requests: it is on record, it is created, it serves, and an event says why."""
    kube = Counting()
    operator = submitted(kube, "first")
    work(kube, operator, 60)
    run_pods(kube)
    work(kube, operator, 400)
    kube.requests.clear()
    operator.events.reasons.clear()
    lost = kube.objects[(PODS.plural, NAMESPACE, "first-rollout-1-1")]
    if end == "deleted":
        kube.remove((PODS.plural, NAMESPACE, "first-rollout-1-1"))
    else:
        ended = {"name": "dapo", "state": {"terminated": {"exitCode": 1}}}
        kube.update(lost, status={"phase": "Failed", "containerStatuses": [ended]})
    work(kube, operator, 1)
    assert (PODS.plural, NAMESPACE, "first-rollout-1-1-2") in kube.objects
    work(kube, operator, 20)
    running = {"name": "dapo", "ready": True, "state": {"running": {}}}
    ready = {"type": "Ready", "status": "True"}
    made = kube.objects[(PODS.plural, NAMESPACE, "first-rollout-1-1-2")]
    kube.update(made, status={"phase": "Running", "conditions": [ready], "containerStatuses": [running]})
    work(kube, operator, 4000)
    assert kube.requests == {"status": 2, "create pods": 1}
    assert operator.events.reasons == ["RolloutReplaced"]


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


def trained(kube: Counting) -> tuple[Operator, Object]:
    """A job that trains, and its operator."""
    operator = submitted(kube, "job-0")
    work(kube, operator, 5)
    run_pods(kube)
    work(kube, operator, 5)
    (job,) = kube.of_kind("DAPOJob")
    assert job["status"]["phase"] == "Training"
    kube.requests.clear()
    return operator, job


UNREADABLE: dict[str, Callable[[Object], Object]] = {
    "a condition of a newer version": lambda status: {
        **status,
        "conditions": [*status["conditions"], {**status["conditions"][0], "type": "Novel"}],
    },
    "an eleventh attempt": lambda status: {
        **status,
        "attempts": [{**status["attempts"][0], "number": number} for number in range(1, 12)],
    },
    "a field of another type": lambda status: {**status, "restartsCounted": {"node": 1}},
}


@pytest.mark.parametrize("change", UNREADABLE.values(), ids=UNREADABLE.keys())
def test_a_job_whose_status_cannot_be_read_is_frozen(change: Callable[[Object], Object]) -> None:
    kube = Counting()
    operator, job = trained(kube)
    pods = kube.of_kind("Pod")
    kube.update(job, status=change(job["status"]))
    work(kube, operator, 1000)
    assert kube.of_kind("Pod") == pods and kube.requests == {}
    (reconciler,) = operator.reconcilers.values()
    assert reconciler.conditions() == ["Frozen"]
    assert operator.events.reasons == ["AttemptStarted", "PodsReady", "StatusUnreadable"]
    # An operator that starts with such a job knows no more about it.
    restarted = Operator(kube)
    work(kube, restarted, 1000)
    assert kube.of_kind("Pod") == pods
    assert not any(name.startswith(("create", "delete", "patch", "status")) for name in kube.requests)
    # Once its status can be read again, the job goes on.
    kube.update(kube.of_kind("DAPOJob")[0], status=job["status"])
    work(kube, restarted, 5)
    assert kube.of_kind("Pod") == pods
    assert "Frozen" not in next(iter(restarted.reconcilers.values())).conditions()


def test_a_frozen_job_that_is_deleted_lets_go_of_its_pods() -> None:
    kube = Counting()
    operator, job = trained(kube)
    kube.update(job, status=UNREADABLE["an eleventh attempt"](job["status"]))
    work(kube, operator, 2)
    kube.mark_deleted(kube.of_kind("DAPOJob")[0])
    for _ in range(30):
        work(kube, operator, 1)
        for pod in kube.of_kind("Pod"):
            if "deletionTimestamp" in pod["metadata"]:
                kube.remove((PODS.plural, NAMESPACE, pod["metadata"]["name"]))
    assert kube.of_kind("Pod") == [] and kube.of_kind("DAPOJob") == []


def ended(kube: Counting) -> None:
    """The cluster finishes every deletion."""
    for pod in kube.of_kind("Pod"):
        if "deletionTimestamp" in pod["metadata"]:
            kube.remove((PODS.plural, NAMESPACE, pod["metadata"]["name"]))


def test_a_refused_deletion_is_reported_and_retried_with_backoff() -> None:
    kube = Counting()
    operator, job = trained(kube)

    def fault(what: str, after: bool) -> None:
        kube.requests[what] += not after
        if what == "delete pods" and not after:
            raise error_of(403, {"reason": "Forbidden", "message": "admission webhook denied the request: keep"})

    kube.fault = fault
    kube.update(job, spec={**job["spec"], "suspend": True})
    work(kube, operator, 1800)
    (job,) = kube.of_kind("DAPOJob")
    ready = next(each for each in job["status"]["conditions"] if each["type"] == "PodsReady")
    assert ready["reason"] == "PodsRemain"
    assert "refused to delete Pod job-0-head-1-0" in ready["message"] and "webhook denied" in ready["message"]
    assert operator.events.reasons.count("PodsRemain") == 1
    assert 3 < kube.requests["delete pods"] < 50, "four pods every few minutes"
    assert kube.requests["status"] < 5
    kube.fault = lambda what, after: None
    for _ in range(700):
        work(kube, operator, 1)
        ended(kube)
    (job,) = kube.of_kind("DAPOJob")
    assert (job["status"]["phase"], kube.of_kind("Pod")) == ("Suspended", [])


def test_a_pod_with_nothing_but_the_label_of_the_job_is_no_concern_of_it() -> None:
    kube = Counting()
    operator, _ = trained(kube)
    meta = {"name": "debug", "namespace": NAMESPACE, "labels": {"dapo.io/job": "job-0"}}
    asyncio_run(kube.create(PODS, {"kind": "Pod", "metadata": meta, "spec": {}}))
    kube.remove((PODS.plural, NAMESPACE, "job-0-trainer-1-0"))
    for _ in range(200):
        work(kube, operator, 1)
        ended(kube)
    (job,) = kube.of_kind("DAPOJob")
    assert [attempt["number"] for attempt in job["status"]["attempts"]] == [1, 2]
    assert "debug" in [pod["metadata"]["name"] for pod in kube.of_kind("Pod")]
    assert kube.requests["list pods"] < 5


STEP_9 = RunSnapshot(Progress(step=9), known=True, attempt=1, reached=9, alerts=())
ALERT = Alert("EntropyCollapse", "Warn", ENTROPY, 8, 9, 0.05, 0.1, "It falls.")
NEWS: dict[str, tuple[RunSnapshot, RunSnapshot, float]] = {
    "a step": (STEP_9, replace(STEP_9, progress=Progress(step=10), reached=10), 30.0),
    "the first step": (replace(STEP_9, progress=Progress()), STEP_9, 0.0),
    "an alert": (STEP_9, replace(STEP_9, progress=Progress(step=10), alerts=(ALERT,)), 0.0),
    "another attempt": (STEP_9, replace(STEP_9, attempt=2), 0.0),
    "a checkpoint": (STEP_9, replace(STEP_9, checkpoint=CheckpointRef(step=9, uri="s3://b/9")), 0.0),
}


@pytest.mark.parametrize(("before", "after", "seconds"), NEWS.values(), ids=NEWS.keys())
def test_progress_alone_is_looked_at_when_it_may_be_written(
    before: RunSnapshot, after: RunSnapshot, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    kube = Counting()
    operator = submitted(kube, "first")
    work(kube, operator, 60)
    (reconciler,) = operator.reconcilers.values()
    reconciler._seen = before
    reconciler._writes.wrote(kube.now())
    monkeypatch.setattr(operator.shared.store, "view", lambda run_id: after)

    async def woken() -> float:
        reconciler._woken = asyncio.Event()
        begun = now()
        reconciler._reported()
        await reconciler._woken.wait()
        return now() - begun

    assert run_virtual(woken()) == seconds
