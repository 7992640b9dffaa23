"""Jobs in the queues of a real Kueue: each situation of docs/queues.md, and nothing reserved afterwards."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_jobs import BY_HAND, JobOn, job_on
from operator_process import OperatorProcess
from patience import patient
from queued_jobs import DRIVEN, Driver, QueuedJobs, ended, succeed
from servers.kubernetes import Cluster
from servers.kubernetes_pods import finish
from servers.kueue import GROUP, KueueController, cluster_queue, flavor, local_queue, topology

from dapo_core.db import upgrade

NAMESPACE = "kueue-jobs"
QUEUES = ("red", "blue")
RACKS = "racks"
NONE = dict.fromkeys((*QUEUES, RACKS), 0)
USAGE = ("flavorsReservation", "flavorsUsage")
WORKLOADS = f"{GROUP}/namespaces/{NAMESPACE}/workloads"
SPOT = {"key": "spot", "operator": "Exists", "effect": "NoSchedule"}


@pytest.fixture(scope="module")
def kueue(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KueueController]:
    """Kueue, and two queues of one GPU each in one cohort."""
    controller = KueueController(cluster, tmp_path_factory.mktemp("kueue"))
    controller.install()
    try:
        controller.start()
        cluster.namespace(NAMESPACE)
        cluster.api.create(f"{GROUP}/resourceflavors", flavor("fake", {"type": "kwok"}, [SPOT]))
        for name in QUEUES:
            cluster.api.create(f"{GROUP}/clusterqueues", cluster_queue(name, "lab", "fake", gpus=1))
        # Racks, of which the smaller has one node with GPUs.
        for index, rack in enumerate("abbb"):
            cluster.api.patch(f"/api/v1/nodes/node-{index}", {"metadata": {"labels": {"rack": rack}}})
        cluster.api.create(f"{GROUP}/topologies", topology(RACKS, ["rack", "kubernetes.io/hostname"]))
        cluster.api.create(f"{GROUP}/resourceflavors", flavor(RACKS, {"type": "kwok"}, [], RACKS))
        cluster.api.create(f"{GROUP}/clusterqueues", cluster_queue(RACKS, RACKS, RACKS, gpus=32))
        for name in NONE:
            cluster.api.create(f"{GROUP}/namespaces/{NAMESPACE}/localqueues", local_queue(name))
        yield controller
    finally:
        controller.process.kill()


@pytest.fixture(scope="module")
def metadata(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The URL of the operator's metadata store."""
    url = f"sqlite:///{tmp_path_factory.mktemp('metadata')}/dapo.db"
    upgrade(url)
    return url


@pytest.fixture(scope="module")
def operator(
    cluster: Cluster, kueue: KueueController, metadata: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OperatorProcess]:
    """The operator of the jobs' namespace."""
    folder = tmp_path_factory.mktemp("operator")
    process = OperatorProcess(cluster.kubeconfig, folder, namespaces=NAMESPACE, DAPO_METADATA_URL=metadata).start()
    yield process
    assert process.stop() == 0, process.log.read_text()


def reserving(cluster: Cluster) -> dict[str, int]:
    """Workloads with quota, by ClusterQueue, once Kueue has counted them."""
    queues = cluster.api.items(f"{GROUP}/clusterqueues")
    return {each["metadata"]["name"]: each.get("status", {}).get("reservingWorkloads", 0) for each in queues}


def used(cluster: Cluster) -> set[str]:
    """The amounts of all resources that are reserved or used."""
    statuses = [each.get("status", {}) for each in cluster.api.items(f"{GROUP}/clusterqueues")]
    usages = [usage for status in statuses for key in USAGE for usage in status.get(key, ())]
    return {resource["total"] for usage in usages for resource in usage["resources"]}


@pytest.fixture
def jobs(request: pytest.FixtureRequest, cluster: Cluster, operator: OperatorProcess) -> Iterator[QueuedJobs]:
    """No job is left of it, whose Workload or quota would be in the next test's way."""
    made = QueuedJobs(cluster, WORKLOADS, "kueue", request.node.name)
    yield made
    made.delete()
    cluster.wait_until(lambda: set(reserving(cluster).values()) == {0}, "no quota is reserved")
    cluster.wait_until(lambda: used(cluster) <= {"0"}, "no quota is used")


def waits(job: JobOn, attempt: int) -> None:
    """Until this attempt waits for GPUs, without pods, and says so."""

    def holds() -> bool:
        status, quota = job.status(), job.condition("QuotaReserved")
        numbers = [each["number"] for each in status.get("attempts", ())]
        told = quota.get("reason") == "WaitingForQuota"
        return status.get("phase") == "Pending" and numbers[-1:] == [attempt] and told and job.pods() == []

    job.wait(holds, f"attempt {attempt} of {job.name} waits")


def workload(job: JobOn, attempt: int = 1) -> str:
    """The path of an attempt's Workload."""
    return f"{WORKLOADS}/{job.name}-{attempt}"


def test_borrowed_preempted_queued_again_and_resumed(jobs: QueuedJobs) -> None:
    """Two queues, one cohort, four jobs that do not fit together."""
    first = jobs.submit("first", "red").wait_phase("Training")
    second = jobs.submit("second", "red").wait_phase("Training")
    jobs.cluster.wait_until(lambda: reserving(jobs.cluster) == NONE | {"red": 2}, "the second has borrowed")
    third = jobs.submit("third", "blue").wait_phase("Training")
    # Kueue takes either: they were admitted in the same second.
    third.wait(lambda: any(len(job.status()["attempts"]) == 2 for job in (first, second)), "one of them is preempted")
    victim, other = sorted((first, second), key=lambda job: -len(job.status()["attempts"]))
    waits(victim, 2)
    assert ended(victim) == ("Preempted", 0)
    victim.wait(lambda: "nvidia.com/gpu" in victim.condition("QuotaReserved")["message"], "it says what is missing")
    fourth = jobs.submit("fourth", "blue")
    waits(fourth, 1)
    assert other.status()["attempts"][-1]["number"] == 1
    other.delete()
    victim.wait_attempt(2)
    succeed(third)
    fourth.wait_phase("Training")


def test_pods_run_on_the_nodes_of_their_flavor(jobs: QueuedJobs) -> None:
    job = jobs.submit("job", "red").wait_phase("Training")
    for pod in job.pods():
        assert pod["spec"]["nodeSelector"] == {"type": "kwok"}
        assert SPOT in pod["spec"]["tolerations"]
    assert job.condition("QuotaReserved")["message"] == f"Kueue admitted Workload {job.name}-1."


def test_a_crash_gives_the_quota_to_whoever_waits(jobs: QueuedJobs) -> None:
    """B1: with pod groups it stayed Stopping for ever, and kept its quota."""
    job, other = jobs.submit("job", "red").wait_phase("Training"), jobs.submit("other", "blue").wait_phase("Training")
    waiting = jobs.submit("waiting", "red")
    waits(waiting, 1)
    finish(jobs.cluster.api, job.pod("head"), 1)
    waiting.wait_phase("Training")
    waits(job, 2)
    assert ended(job) == ("Crashed", 1)
    other.delete()
    job.wait_attempt(2)


def test_suspended_while_queued_and_while_training(jobs: QueuedJobs) -> None:
    training = jobs.submit("training", "red").wait_phase("Training")
    jobs.submit("other", "blue").wait_phase("Training")
    queued = jobs.submit("queued", "red")
    waits(queued, 1)
    queued.edit(suspend=True)
    queued.wait_phase("Suspended")
    training.edit(suspend=True)
    training.wait_phase("Suspended")
    assert training.pods() == []
    jobs.cluster.wait_until(lambda: reserving(jobs.cluster) == NONE | {"blue": 1}, "its quota is free")
    queued.edit(suspend=False)
    queued.wait_attempt(2)


def test_a_deleted_workload(jobs: QueuedJobs) -> None:
    job = jobs.submit("job", "red").wait_phase("Training")
    jobs.cluster.api.delete(workload(job))
    job.wait_attempt(2)
    assert ended(job) == ("Preempted", 0)


def test_a_deactivated_workload(jobs: QueuedJobs) -> None:
    job = jobs.submit("job", "red").wait_phase("Training")
    jobs.cluster.api.patch(workload(job), {"spec": {"active": False}})
    job.wait_reason("Suspended", "DeactivatedInQueue")
    jobs.cluster.wait_until(lambda: reserving(jobs.cluster)["red"] == 0, "its quota is free")
    job.edit(runPolicy={"maxRestarts": 9})
    job.wait_attempt(2)


def test_quota_that_is_lowered_and_a_queue_that_is_drained(jobs: QueuedJobs) -> None:
    """Kueue lets a running job keep what it has; the next attempt does not get it. A drain takes it back."""
    job = jobs.submit("job", "red").wait_phase("Training")
    path = f"{GROUP}/clusterqueues/{{}}"
    before = {name: jobs.cluster.api.get(path.format(name))["spec"] for name in QUEUES}
    try:
        for name in QUEUES:
            jobs.cluster.api.patch(path.format(name), {"spec": cluster_queue(name, "lab", "fake", gpus=0)["spec"]})
        finish(jobs.cluster.api, job.pod("head"), 1)
        waits(job, 2)
        for name in QUEUES:
            jobs.cluster.api.patch(path.format(name), {"spec": {"resourceGroups": before[name]["resourceGroups"]}})
        job.wait_attempt(2)
        jobs.cluster.api.patch(path.format("red"), {"spec": {"stopPolicy": "HoldAndDrain"}})
        waits(job, 3)
        assert ended(job, 2) == ("Preempted", 1)
    finally:
        for name in QUEUES:
            groups = {"resourceGroups": before[name]["resourceGroups"], "stopPolicy": "None"}
            jobs.cluster.api.patch(path.format(name), {"spec": groups})
    job.wait_attempt(3)


def test_kueue_is_away(jobs: QueuedJobs, kueue: KueueController) -> None:
    """A job ends, one fails, another comes. All that ask for quota wait, and get it when Kueue is back."""
    job, other = jobs.submit("job", "red").wait_phase("Training"), jobs.submit("other", "blue").wait_phase("Training")
    kueue.process.kill()
    try:
        succeed(other)
        finish(jobs.cluster.api, job.pod("head"), 1)
        waits(job, 2)
        later = jobs.submit("later", "blue")
        later.wait(lambda: workload(later).rpartition("/")[2] in jobs.reserved(), "it asks for quota")
        assert later.pods() == []
    finally:
        kueue.start()
    job.wait_attempt(2)
    later.wait_phase("Training")


def test_the_operator_is_away(jobs: QueuedJobs, operator: OperatorProcess) -> None:
    """An attempt that ends meanwhile holds its quota no longer once the operator is back."""
    job = jobs.submit("job", "red").wait_phase("Training")
    operator.kill()
    try:
        finish(jobs.cluster.api, job.pod("head"), 1)
        job.edit(suspend=True)
    finally:
        operator.start()
    job.wait_phase("Suspended")
    jobs.cluster.wait_until(lambda: reserving(jobs.cluster)["red"] == 0, "its quota is free")


def test_a_priority_class_that_is_missing_is_named(jobs: QueuedJobs) -> None:
    job = JobOn(jobs.cluster, NAMESPACE, "no-priority")
    with job_on(jobs.cluster, NAMESPACE, job.name):
        policy = {"gang": {"scheduler": "kueue", "queue": "red"}, "priorityClassName": "urgent"}
        job.submit(runPolicy=policy)
        message = job.wait_reason("PodsReady", "ApiRefused")["message"]
        assert "PriorityClass urgent does not exist" in message
        urgent = {"metadata": {"name": "urgent"}, "value": 1000, "preemptionPolicy": "Never"}
        jobs.cluster.api.create("/apis/scheduling.k8s.io/v1/priorityclasses", urgent)
        job.wait_phase("Training")
        assert jobs.cluster.api.get(workload(job))["spec"]["priority"] == 1000
    job.wait_gone()


def test_the_operator_is_away_while_a_job_queues(jobs: QueuedJobs, operator: OperatorProcess) -> None:
    """Kueue admits it meanwhile, and somebody takes the quota of one that trains."""
    job, other = jobs.submit("job", "red").wait_phase("Training"), jobs.submit("other", "blue").wait_phase("Training")
    queued = jobs.submit("queued", "red")
    waits(queued, 1)
    operator.kill()
    try:
        jobs.cluster.api.delete(workload(job))
        jobs.cluster.wait_until(lambda: reserving(jobs.cluster)["red"] == 1, "Kueue has admitted the one that waited")
    finally:
        operator.start()
    queued.wait_phase("Training")
    waits(job, 2)
    assert ended(job) == ("Preempted", 0)
    assert other.status()["attempts"][-1]["number"] == 1


def test_deleted_and_suspended_while_queued(jobs: QueuedJobs) -> None:
    first, second = jobs.submit("first", "red").wait_phase("Training"), jobs.submit("second", "red")
    second.wait_phase("Training")
    third, fourth = jobs.submit("third", "red"), jobs.submit("fourth", "red")
    waits(third, 1)
    waits(fourth, 1)
    third.edit(suspend=True)
    fourth.delete()
    third.wait_phase("Suspended")
    fourth.wait_gone()
    asked = [f"{first.name}-1", f"{second.name}-1"]
    jobs.cluster.wait_until(lambda: jobs.reserved() == sorted(asked), "only those that train have a Workload")


def test_a_preempted_job_goes_on_where_it_was(jobs: QueuedJobs, metadata: str, tmp_path: Path) -> None:
    """From the checkpoint that its driver saves at its end, with the project's own code: no step is lost."""
    jobs.submit("other", "blue").wait_phase("Training")
    grace = {"gracePeriodSeconds": 600}
    job = jobs.submit("job", "red", grace, topology=DRIVEN, schedule={"steps": 100_000}).wait_phase("Training")
    driver = Driver(job, tmp_path, metadata)
    with driver.trains(attempt=1):
        job.wait(lambda: driver.step > 5, "it has trained")
        pressing = {"metadata": {"name": "pressing"}, "value": 1000, "preemptionPolicy": "Never"}
        jobs.cluster.api.create("/apis/scheduling.k8s.io/v1/priorityclasses", pressing)
        urgent = jobs.submit("urgent", "red", {"priorityClassName": "pressing"})
    reached = driver.step
    waits(job, 2)
    assert ended(job) == ("Preempted", 0)
    urgent.wait_phase("Training")
    urgent.delete()
    job.wait_attempt(2)
    restored = driver.restore(attempt=2)
    assert restored is not None
    assert reached - restored.step <= 1
    assert (tmp_path / "attempt-2" / "model.pt").read_bytes() == b"weights of step %d" % restored.step
    job.wait(lambda: job.status().get("checkpoint", {}).get("step") == restored.step, "the operator knows it")
    succeed(job, attempt=2)


def test_kueue_waits_for_pods_that_are_ready(jobs: QueuedJobs, kueue: KueueController) -> None:
    """A healthy attempt is not evicted, and lets the next one in; one whose pods do not get ready is evicted. Kueue
    counts what has finished."""
    kueue.restart(waitForPodsReady={"timeout": f"{patient(10):.0f}s", "blockAdmission": True})
    try:
        healthy = jobs.submit("healthy", "red").wait_phase("Training")
        late = jobs.submit("late", "blue", topology={"trainer": {"podTemplate": BY_HAND}})
        late.wait(lambda: len(late.status().get("attempts", ())) > 1, "it is evicted", patient(10) + 60)
        assert ended(late)[0] == "StartTimeout"
        assert "PodsReadyTimeout" in late.status()["attempts"][0]["message"]
        assert healthy.status()["attempts"][-1]["number"] == 1
        late.delete()
        before = kueue.metric("kueue_finished_workloads_total", cluster_queue="red")
        succeed(healthy)
        finished = before + 1
        healthy.wait(
            lambda: kueue.metric("kueue_finished_workloads_total", cluster_queue="red") == finished, "it is counted"
        )
    finally:
        kueue.restart()


def test_a_part_of_the_rollouts_is_admitted(jobs: QueuedJobs) -> None:
    """What the cohort has: two GPUs, one for the trainer and one for a rollout."""
    rollout = {"replicas": 3, "minReplicas": 1, "gpusPerPod": 1}
    job = jobs.submit("job", "red", topology={"mode": "Separated", "trainer": {"gpusPerPod": 1}, "rollout": rollout})
    job.wait_phase("Training")
    assert len(job.pods(role="rollout")) == 1
    assert len(job.pods()) == 3
    jobs.cluster.wait_until(lambda: reserving(jobs.cluster) == NONE | {"red": 1}, "Kueue has counted it")


def test_a_gang_stays_in_one_rack(jobs: QueuedJobs) -> None:
    """Its trainers need two nodes of one rack. The gate of the others, which ask for nothing, is taken off, too."""
    required = {"metadata": {"annotations": {"kueue.x-k8s.io/podset-required-topology": "rack"}}}
    trainer = {"replicas": 2, "gpusPerPod": 8, "podTemplate": required}
    job = jobs.submit(
        "job", RACKS, topology={"mode": "Separated", "trainer": trainer, "rollout": {"replicas": 1, "gpusPerPod": 8}}
    )
    job.wait_phase("Training")
    nodes = [pod["spec"]["nodeName"] for pod in job.pods(role="trainer")]
    racks = [jobs.cluster.api.get(f"/api/v1/nodes/{node}")["metadata"]["labels"]["rack"] for node in nodes]
    assert (racks, len(set(nodes))) == (["b", "b"], 2)
