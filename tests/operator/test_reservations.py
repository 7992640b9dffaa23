"""An attempt's room with its gang scheduler, whoever ends the attempt."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from urllib.parse import urlencode

import pytest
from fake_kube import FakeKube, Object
from planner_bench import Bench, raw_job
from simulated_operator import Operator, asyncio_run

from dapo_operator.jobs.actions import Release
from dapo_operator.jobs.dapojob import JOBS
from dapo_operator.jobs.gangs.gang_scheduler import PodSetAssignment
from dapo_operator.jobs.gangs.kueue import FLAVORS, POD_FINALIZER
from dapo_operator.jobs.gangs.schedulers import QUEUEING, SCHEDULERS
from dapo_operator.kube.objects import Resource, error_of
from dapo_operator.queue_positions import QueuePositions

HEAD, TRAINER = "first-head-1-0", "first-trainer-1-0"


def queued(scheduler: str = "kueue", **groups: Any) -> Bench:
    """A job that has asked for its room."""
    return Bench(raw_job(runPolicy={"gang": {"scheduler": scheduler, "queue": "team"}}, **groups)).settle()


def trains(scheduler: str = "kueue") -> Bench:
    return queued(scheduler).admit("first-1").training()


ENDS: dict[str, Callable[[Bench], Bench]] = {
    "success": lambda bench: bench.finish(HEAD, 0).finish(TRAINER, 0),
    "failure": lambda bench: bench.finish(HEAD, 10, "InvalidSpec", "no"),
    "suspended": lambda bench: bench.edit(suspend=True),
    "evicted": lambda bench: bench.change(TRAINER, deleting=True, disruption="Evicted"),
}


@pytest.mark.parametrize("scheduler", QUEUEING)
@pytest.mark.parametrize("end", ENDS)
def test_b2_what_an_attempt_reserved_is_released_when_it_ends(scheduler: str, end: str) -> None:
    bench = trains(scheduler)
    assert list(bench.reservations) == ["first-1"]
    ENDS[end](bench).settle()
    bench.pods = {name: pod for name, pod in bench.pods.items() if not pod.deleting}
    bench.settle()
    assert list(bench.reservations) == (["first-2"] if end == "evicted" else [])


@pytest.mark.parametrize("scheduler", QUEUEING)
def test_b2_a_crash_releases_before_the_next_attempt_asks(scheduler: str) -> None:
    bench = trains(scheduler)
    bench.finish(HEAD, 1).settle().settle(3600)
    assert (bench.attempts[-1], list(bench.reservations)) == ((2, None), ["first-2"])


@pytest.mark.parametrize("scheduler", QUEUEING)
def test_reservations_of_attempts_that_ended_while_the_operator_was_away_are_released(scheduler: str) -> None:
    bench = trains(scheduler)
    bench.reservations["first-0"] = replace(bench.reservations["first-1"], name="first-0", attempt=0, uid="old")
    assert [action for action in bench.look().actions if isinstance(action, Release)] == [
        Release(scheduler, "first-0", "old")
    ]


def test_a_reservation_of_another_scheduler_is_released_with_its_attempt() -> None:
    bench = trains("volcano").edit(runPolicy={"gang": {"scheduler": "kueue"}}).settle()
    assert bench.reservations["first-1"].scheduler == "volcano", "the running attempt keeps it"
    bench.finish(HEAD, 1).settle().settle(3600)
    assert [(each.scheduler, each.attempt) for each in bench.reservations.values()] == [("kueue", 2)]


@pytest.mark.parametrize("scheduler", [name for name in QUEUEING if name != "kueue"])
def test_a_deleted_pod_group_is_asked_for_again(scheduler: str) -> None:
    bench = trains(scheduler)
    bench.reservations.clear()
    assert list(bench.settle().reservations) == ["first-1"]


def test_suspended_while_queued() -> None:
    bench = queued().edit(suspend=True).settle()
    assert (bench.reservations, bench.status.phase) == ({}, "Suspended")
    bench.edit(suspend=False).settle()
    assert (list(bench.reservations), bench.status.phase) == (["first-2"], "Pending")
    assert bench.names == []


def test_deleted_while_queued() -> None:
    bench = queued().delete_job()
    assert bench.step().gone, "nothing is waited for; the Workload goes with its owner"


def test_a_deleted_workload_is_quota_that_is_wanted_back() -> None:
    bench = trains()
    bench.slow_deletion = True
    bench.reservations.clear()
    bench.settle()
    assert bench.deleted == [HEAD], "the driver saves a checkpoint while its workers are there"
    assert bench.attempts == [(1, "Preempted")]
    assert bench.status.attempts[-1].message == "Workload first-1 was deleted."
    bench.vanish(HEAD).settle()
    bench.vanish(TRAINER).settle()
    assert list(bench.reservations) == ["first-2"]


@pytest.mark.parametrize("start", [queued, trains], ids=["queued", "training"])
def test_no_attempt_waits_for_a_workload_that_waits_for_its_pods(start: Callable[[], Bench]) -> None:
    """A finalizer keeps what somebody has deleted until its pods are gone."""
    bench = start().admit("first-1", terminating=True).settle()
    if start is queued:
        assert (bench.attempts, bench.names) == ([(1, None)], []), "it gets no pods"
        bench.reservations.clear()
        bench.settle()
    assert list(bench.reservations) == (["first-1"] if start is queued else ["first-2"])
    assert bench.names == []


def test_a_workload_that_is_deleted_while_queued_is_asked_for_again() -> None:
    bench = queued()
    bench.reservations.clear()
    bench.settle()
    assert (bench.attempts, list(bench.reservations)) == ([(1, None)], ["first-1"])


def test_quota_that_is_withdrawn_from_pods() -> None:
    bench = trains().admit("first-1", admitted=False).settle()
    assert bench.attempts == [(1, "Preempted"), (2, None)]


@pytest.mark.parametrize("start", [queued, trains], ids=["queued", "training"])
def test_a_deactivated_workload_suspends_the_job(start: Callable[[], Bench]) -> None:
    bench = start().admit("first-1", deactivated=True).settle()
    assert (bench.status.phase, bench.says("Suspended")) == ("Suspended", ("True", "DeactivatedInQueue"))
    assert (bench.names, bench.reservations) == ([], {})
    assert bench.says("QuotaReserved")[0] == "False"
    assert bench.settle(100_000).status.phase == "Suspended"
    assert list(bench.edit(runPolicy={"maxRestarts": 9}).settle().reservations) == ["first-2"]


def test_kueue_is_told_once_that_the_pods_are_ready() -> None:
    """`waitForPodsReady` evicts what is not ready in time, and admits nobody else meanwhile."""
    bench = queued()
    assert bench.reports == []
    bench.admit("first-1").settle()
    assert bench.reports == [], "it has no ready pods yet"
    bench.training()
    assert [each[:3] for each in bench.reports] == [("first-1", "PodsReady", "Started")]
    bench.change(TRAINER, ready=False).settle()
    bench.change(TRAINER, ready=True).settle()
    assert len(bench.reports) == 1


@pytest.mark.parametrize("scheduler", [name for name in QUEUEING if name != "kueue"])
@pytest.mark.parametrize("end", ENDS)
def test_other_schedulers_are_told_nothing(scheduler: str, end: str) -> None:
    bench = trains(scheduler)
    ENDS[end](bench).settle()
    assert bench.reports == []


def crash(bench: Bench) -> Bench:
    return bench.finish(HEAD, 1, "OutOfMemory", "Out of memory.")


@pytest.mark.parametrize(
    ("end", "told"),
    [
        (ENDS["success"], [("Succeeded", "first-head-1-0 ended with exit code 0; see its log.")]),
        (ENDS["failure"], [("Failed", "no")]),
        (crash, [("Failed", "Out of memory.")]),
        (ENDS["suspended"], []),
        (ENDS["evicted"], []),
        (lambda bench: bench.admit("first-1", revoked="Kueue: evicted."), []),
        (lambda bench: bench.admit("first-1", deactivated=True), []),
    ],
    ids=["success", "failure", "crash", "suspended", "a pod evicted", "preempted", "deactivated"],
)
def test_kueue_counts_attempts_that_end_by_themselves(
    end: Callable[[Bench], Bench], told: list[tuple[str, str]]
) -> None:
    bench = end(trains()).settle()
    bench.pods = {name: pod for name, pod in bench.pods.items() if not pod.deleting}
    bench.settle(3600)
    assert [each[2:] for each in bench.reports if each[1] == "Finished"] == told
    assert "first-1" not in bench.reservations


@pytest.mark.parametrize(("started", "restarts"), [(True, 1), (False, 0)], ids=["ran", "never ran"])
def test_pods_that_are_not_ready_in_time_for_kueue_are_a_late_start(started: bool, restarts: int) -> None:
    """As with the operator's own startTimeoutSeconds: a job whose processes never get ready fails in the end."""
    bench = queued().admit("first-1").settle().change_all(started=started)
    bench.admit("first-1", revoked="Kueue: Workload first-1 is Evicted (PodsReadyTimeout).", late=True).settle()
    assert bench.attempts[0] == (1, "StartTimeout")
    assert bench.status.restarts_counted in (restarts, restarts or None)
    bench.settle(3600)
    assert list(bench.reservations) == ["first-2"]


def test_pods_wait_until_their_flavors_are_known() -> None:
    bench = queued().admit("first-1", placements={"trainer": PodSetAssignment(flavors=("h100",))}).settle()
    assert bench.names == []
    assert "ResourceFlavor h100 could not be read" in bench.condition("PodsReady").message
    bench.seeing(flavors={"h100": {"nodeLabels": {"gpu": "h100"}}}).settle()
    assert bench.names == [HEAD, TRAINER]


def test_the_position_in_the_queue() -> None:
    bench = queued().seeing(queue_position=3).settle()
    assert bench.condition("QuotaReserved").message == "Workload first-1 waits in LocalQueue team at position 3."
    bench.admit("first-1").settle()
    assert "position" not in bench.condition("QuotaReserved").message


class PendingWorkloads(FakeKube):
    """Counts who asks for a queue, and knows two Workloads of it."""

    def __init__(self) -> None:
        super().__init__(1, 1_800_000_000.0)
        self.asked: list[str] = []
        self.served = True

    async def get(self, resource: Resource, namespace: str, name: str, sub: str = "", **query: str) -> Object:
        self.asked.append(f"{resource.path(namespace, name, sub)}?{urlencode(query)}")
        if not self.served:
            raise error_of(404, {})
        names = ("b-1", "a-1")
        return {"items": [{"metadata": {"name": each}, "positionInLocalQueue": at} for at, each in enumerate(names)]}


def test_the_jobs_of_a_queue_ask_once_for_their_positions() -> None:
    kube = PendingWorkloads()
    positions = QueuePositions(kube)  # type: ignore[arg-type]

    def ask(workload: str, seconds: float) -> int | None:
        found: int | None = asyncio_run(positions.of("team", "research", workload, seconds))
        return found

    assert [ask(name, 0.0) for name in ("a-1", "b-1", "far-1")] == [2, 1, None]
    assert ask("a-1", 59.0) == 2
    base = "/apis/visibility.kueue.x-k8s.io/v1beta2/namespaces/team/localqueues/research/pendingworkloads"
    assert kube.asked == [f"{base}?limit=10"]
    kube.served = False
    assert [ask("a-1", at) for at in (60.0, 600.0)] == [None, None]
    assert len(kube.asked) == 2, "it is not served, and not asked for again soon"


def test_rollouts_that_kueue_did_not_admit_are_not_created() -> None:
    topology = {"mode": "Separated", "rollout": {"replicas": 4, "minReplicas": 1}}
    bench = queued(topology=topology).admit("first-1", placements={"rollout": PodSetAssignment(count=2)})
    bench.step()
    assert [name for name in bench.names if "rollout" in name] == ["first-rollout-1-0", "first-rollout-1-1"]
    assert HEAD in bench.names and TRAINER in bench.names


def test_b15_admitted_is_said_when_kueue_says_so() -> None:
    bench = queued()
    assert bench.says("QuotaReserved") == ("False", "WaitingForQuota")
    assert (bench.status.phase, bench.status.pods) == ("Pending", "0/2")
    bench.admit("first-1").settle()
    assert bench.condition("QuotaReserved").message == "Kueue admitted Workload first-1."


def with_label(queue: str, **groups: Any) -> Bench:
    raw = raw_job(**groups)
    raw["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": queue}
    return Bench(raw)


@pytest.mark.parametrize("gang", [{}, {"scheduler": "kueue", "queue": "other"}], ids=["alone", "over the spec's"])
def test_the_label_of_every_kueue_user_names_the_queue(gang: dict[str, str]) -> None:
    bench = with_label("research", runPolicy={"gang": gang}).settle()
    assert list(bench.reservations) == ["first-1"]
    assert bench.job.spec.run_policy.gang.queue == "research"
    assert "waits in LocalQueue research" in bench.condition("QuotaReserved").message


def test_a_label_that_contradicts_the_scheduler_is_rejected() -> None:
    bench = with_label("research", runPolicy={"gang": {"scheduler": "volcano"}}).settle()
    assert bench.says("Failed") == ("True", "InvalidSpec")
    assert "metadata.labels[kueue.x-k8s.io/queue-name] is research" in bench.condition("Failed").message


class TestUpgrade:
    """Attempts that an earlier version began, as one of Kueue's plain pod groups."""

    def began(self, **fields: Any) -> Bench:
        bench = trains()
        bench.reservations.clear()
        changes = {"workload": None, "grouped": True, "finalizers": (POD_FINALIZER,)} | fields
        return bench.change_all(**changes)

    def test_a_running_attempt_goes_on(self) -> None:
        bench = self.began().settle()
        assert (bench.attempts, bench.status.phase, bench.reservations) == ([(1, None)], "Training", {})

    def test_b1_its_end_deletes_the_workload_whose_finalizers_keep_the_pods(self) -> None:
        bench = self.began().finish(HEAD, 1)
        for _ in range(3):
            bench.step()
        assert Release("kueue", "first-1", None) in bench.look().actions
        assert bench.attempts == [(1, "Crashed")]
        bench.pods.clear()
        bench.settle().settle(3600)
        assert list(bench.reservations) == ["first-2"]

    def test_one_that_still_waits_keeps_its_place(self) -> None:
        bench = self.began(gated=True, ready=False, phase="Pending", scheduled=False, started=False)
        bench.status = bench.status.model_copy(
            update={"attempts": [bench.status.attempts[0].model_copy(update={"ready_at": None})]}
        )
        bench.settle()
        assert (bench.attempts, bench.reservations) == ([(1, None)], {})
        assert bench.says("QuotaReserved") == ("False", "WaitingForQuota")

    def test_one_that_lacks_pods_is_begun_again(self) -> None:
        bench = self.began(ready=False)
        bench.status = bench.status.model_copy(
            update={"attempts": [bench.status.attempts[0].model_copy(update={"ready_at": None})]}
        )
        bench.vanish(TRAINER)
        for _ in range(3):
            bench.step()
        assert bench.attempts == [(1, "PodDeleted")]
        assert Release("kueue", "first-1", None) in bench.look().actions


class WithFlavors(FakeKube):
    """Kueue's flavors, and how often they were read."""

    def __init__(self) -> None:
        super().__init__(1, 1_800_000_000.0)
        self.read = 0

    async def get(self, resource: Resource, namespace: str, name: str, sub: str = "", **query: str) -> Object:
        if resource != FLAVORS:
            return await super().get(resource, namespace, name)
        self.read += 1
        return {"spec": {"nodeLabels": {"gpu": name}}}


def test_an_operator_that_was_restarted_knows_the_flavors_of_pods_it_replaces() -> None:
    """It reads them once more, although the attempt has pods, and not at each reconciliation."""
    kube = WithFlavors()
    raw = raw_job(
        topology={"mode": "Separated", "rollout": {"replicas": 2}},
        runPolicy={"gang": {"scheduler": "kueue", "queue": "team"}},
    )
    asyncio_run(kube.create(JOBS, {**raw, "metadata": {"name": "first", "namespace": "team"}}))
    Operator(kube).pass_time(1)
    [workload] = kube.of_kind("Workload")
    placements = [{"name": role, "flavors": {"cpu": "h100"}} for role in ("head", "trainer", "rollout")]
    status = {
        "conditions": [{"type": "Admitted", "status": "True"}],
        "admission": {"podSetAssignments": placements},
    }
    assert SCHEDULERS["kueue"].resource is not None
    kube.insert(SCHEDULERS["kueue"].resource, {**workload, "status": status})
    restarted = Operator(kube)
    for _ in range(3):
        restarted.pass_time(1)
    pods = kube.of_kind("Pod")
    assert [pod["spec"]["nodeSelector"] for pod in pods] == [{"gpu": "h100"}] * 4
    read = kube.read
    again = Operator(kube)
    kube.remove(("pods", "team", "first-rollout-1-1"))
    for _ in range(400):
        again.pass_time(1)
    assert {pod["metadata"]["labels"]["dapo.io/role"] for pod in kube.of_kind("Pod")} == {"head", "trainer", "rollout"}
    assert len(kube.of_kind("Pod")) == 4
    assert kube.read == read + 1
