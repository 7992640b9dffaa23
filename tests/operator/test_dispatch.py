"""A job that MultiKueue runs in another cluster: what is done about it in either."""

from dataclasses import replace
from typing import Any

import pytest
from fake_kube import FakeKube, Object
from planner_bench import SITE, START, UID, Bench, raw_job
from simulated_operator import NAMESPACE, Operator, asyncio_run
from simulated_queues import WORKLOADS

from dapo_core.run.status import Condition, DAPOJobStatus
from dapo_operator.jobs.actions import Adopt, Release, Reserve
from dapo_operator.jobs.dapojob import JOBS, job_of
from dapo_operator.jobs.gangs.gang_scheduler import Reservation
from dapo_operator.jobs.gangs.kueue import MULTIKUEUE, PREBUILT
from dapo_operator.jobs.planner.dispatch import plan_dispatch
from dapo_operator.kube.objects import timestamp

WAITING = Reservation("kueue", "first-1", "uid-1", 1, admitted=False)
GANG: dict[str, Any] = {"runPolicy": {"gang": {"scheduler": "kueue", "queue": "team"}}}
SUCCEEDED = DAPOJobStatus(
    conditions=[
        Condition(type="Succeeded", status="True", reason="Done", message="", last_transition_time=timestamp(START))
    ]
)


@pytest.mark.parametrize(
    ("groups", "status", "known", "wanted"),
    [
        pytest.param({}, DAPOJobStatus(), [], ["Reserve"], id="new"),
        pytest.param({}, DAPOJobStatus(), [WAITING], [], id="waits"),
        pytest.param({}, DAPOJobStatus(), [replace(WAITING, admitted=True)], [], id="runs"),
        pytest.param({}, DAPOJobStatus(), [replace(WAITING, revoked="Evicted")], ["Release"], id="evicted"),
        pytest.param({}, DAPOJobStatus(), [replace(WAITING, terminating=True)], [], id="its Workload goes"),
        pytest.param(
            {}, DAPOJobStatus(), [replace(WAITING, revoked="Evicted", deactivated=True)], [], id="deactivated"
        ),
        pytest.param({}, SUCCEEDED, [replace(WAITING, revoked="Finished")], [], id="over"),
        pytest.param({}, SUCCEEDED, [], [], id="over, and its Workload deleted"),
        pytest.param({"suspend": True}, DAPOJobStatus(), [WAITING], ["Release"], id="suspended"),
        pytest.param({"suspend": True}, DAPOJobStatus(), [], [], id="suspended before"),
        pytest.param({"runPolicy": {"gang": {"scheduler": "none"}}}, DAPOJobStatus(), [], [], id="not Kueue's"),
        pytest.param({"managedBy": "example.org/other"}, DAPOJobStatus(), [], [], id="another's"),
    ],
)
def test_all_that_a_dispatched_job_has_here_is_a_workload(
    groups: dict[str, Any], status: DAPOJobStatus, known: list[Reservation], wanted: list[str]
) -> None:
    job = job_of(raw_job(**{"managedBy": MULTIKUEUE, **GANG, **groups}), SITE)
    plan = plan_dispatch(job, status, known, SITE)
    assert [type(action).__name__ for action in plan.actions] == wanted
    assert plan.status is status, "it is a copy of another cluster's"


def copied(label: bool = False) -> Bench:
    """The copy of a job in the cluster where it runs."""
    raw = raw_job(**GANG)
    raw["metadata"]["labels" if label else "annotations"] = {PREBUILT: "first-1"}
    return Bench(raw)


def adopted(bench: Bench) -> list[tuple[str, str]]:
    """Workloads that are taken over, and for which attempt."""
    actions = [action for action in bench.look().actions if isinstance(action, Adopt)]
    return [(action.name, action.body["metadata"]["labels"]["dapo.io/attempt"]) for action in actions]


def hand_over(bench: Bench, attempt: int, **fields: Any) -> None:
    """The Workload, as the API server has it once it was taken over."""
    bench.reservations["first-1"] = Reservation("kueue", "first-1", "uid-1", attempt, **fields)


@pytest.mark.parametrize("label", [False, True], ids=["annotation", "label"])
def test_a_copied_job_uses_the_workload_that_was_copied_with_it(label: bool) -> None:
    bench = copied(label)
    bench.step()
    [adoption] = [action for action in bench.look().actions if isinstance(action, Adopt)]
    assert adoption.body["metadata"]["ownerReferences"][0]["uid"] == UID
    assert not any(isinstance(action, Reserve) for action in bench.look().actions)
    hand_over(bench, 1)
    assert bench.settle().training().condition("Training").status == "True"


def test_the_next_attempt_of_a_copied_job_takes_over_its_workload() -> None:
    bench = copied()
    hand_over(bench, 1)
    bench.settle().training().finish("first-head-1-0", 1).settle()
    assert not [action for action in bench.look().actions if isinstance(action, Release)]
    bench.step(3600)
    assert adopted(bench) == [("first-1", "2")]
    assert bench.reports == [], "it has not finished"


def test_a_workload_that_was_taken_back_is_of_no_use_to_the_next_attempt() -> None:
    bench = copied()
    hand_over(bench, 1)
    bench.settle().training()
    hand_over(bench, 1, revoked="Kueue: Workload first-1 is Evicted.", knows_ready=True)
    for _ in range(20):
        bench.step(60)
        bench.pods = {name: pod for name, pod in bench.pods.items() if not pod.deleting}
    assert adopted(bench) == []
    assert (len(bench.attempts), bench.pods) == (2, {})


@pytest.mark.parametrize(("code", "reason"), [(0, "Succeeded"), (10, "Failed")])
def test_the_end_of_a_copied_job_is_that_of_its_workload(code: int, reason: str) -> None:
    bench = copied()
    hand_over(bench, 1)
    bench.settle().training().finish("first-head-1-0", code, "InvalidSpec", "no").finish("first-trainer-1-0", code)
    for _ in range(5):
        bench.step(1)
    assert ("first-1", "Finished", reason) in [each[:3] for each in bench.reports]
    assert list(bench.reservations) == ["first-1"], "Kueue deletes it"


def submitted(*meta: Object, **groups: Any) -> tuple[FakeKube, Operator]:
    """A job before the operator, with more of its metadata."""
    kube = FakeKube(1, START)
    raw = raw_job(**{**GANG, **groups})
    raw["metadata"] = {"name": "first", "namespace": NAMESPACE} | {
        key: value for each in meta for key, value in each.items()
    }
    asyncio_run(kube.create(JOBS, raw))
    return kube, Operator(kube)


def works(operator: Operator, seconds: int = 10) -> None:
    for _ in range(seconds):
        operator.pass_time(1)


def test_a_dispatched_job_asks_for_room_and_touches_nothing_else() -> None:
    kube, operator = submitted(managedBy=MULTIKUEUE)
    works(operator, 700)
    [workload] = kube.of_kind("Workload")
    assert workload["metadata"]["ownerReferences"][0]["kind"] == "DAPOJob"
    [job] = kube.of_kind("DAPOJob")
    assert ("status" in job, "finalizers" in job["metadata"], kube.of_kind("Pod")) == (False, False, [])
    kube.insert(WORKLOADS, {**workload, "status": {"conditions": [{"type": "Evicted", "status": "True"}]}})
    works(operator)
    [again] = kube.of_kind("Workload")
    assert (again["metadata"]["name"], "status" in again) == (workload["metadata"]["name"], False)


def test_a_dispatched_job_that_is_refused_says_so_in_an_event() -> None:
    priority = {"runPolicy": {**GANG["runPolicy"], "priorityClassName": "missing"}}
    kube, operator = submitted(managedBy=MULTIKUEUE, **priority)
    works(operator, 200)
    assert set(operator.events.reasons) == {"ApiRefused"}
    assert len(operator.events.reasons) < 15, "it is not asked for without a pause"
    assert "status" not in kube.of_kind("DAPOJob")[0]


def test_a_copied_job_waits_for_a_workload_that_is_its_own() -> None:
    """It is woken by the change of the owner, which is all that changes."""
    kube, operator = submitted({"annotations": {PREBUILT: "first-1"}})
    works(operator)
    assert "does not exist" in str(kube.of_kind("DAPOJob")[0]["status"]["conditions"])
    labels = {"dapo.io/job": "first", "dapo.io/attempt": "1"}
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "other", "uid": "other", "controller": True}
    meta = {"name": "first-1", "namespace": NAMESPACE, "labels": labels}
    admitted = {"conditions": [{"type": "Admitted", "status": "True"}]}
    body = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload", "spec": {}, "status": admitted}
    asyncio_run(kube.create(WORKLOADS, {**body, "metadata": {**meta, "ownerReferences": [owner]}}))
    works(operator, 400)
    assert kube.of_kind("Pod") == []
    [workload] = kube.of_kind("Workload")
    assert workload["metadata"]["ownerReferences"] == [owner]
    kube.insert(WORKLOADS, {**workload, "metadata": {**workload["metadata"], "ownerReferences": []}})
    while not kube.of_kind("Workload")[0]["metadata"]["ownerReferences"]:
        works(operator, 1)
    works(operator)
    assert kube.of_kind("Workload")[0]["metadata"]["ownerReferences"][0]["name"] == "first"
    assert len(kube.of_kind("Pod")) == 2
