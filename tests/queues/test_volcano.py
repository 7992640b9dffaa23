"""Jobs in the queues of a real Volcano, and nothing reserved afterwards."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_jobs import JobOn
from operator_process import OperatorProcess
from queued_jobs import QueuedJobs, succeed
from servers.kubernetes import Cluster
from servers.kubernetes_pods import finish
from servers.volcano import GROUP, Volcano, queue

NAMESPACE = "volcano-jobs"
GROUPS = f"{GROUP}/namespaces/{NAMESPACE}/podgroups"


@pytest.fixture(scope="module")
def volcano(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Volcano]:
    """Volcano, and a queue with room for one gang."""
    made = Volcano(cluster, tmp_path_factory.mktemp("volcano"))
    made.install()
    try:
        made.start()
        cluster.namespace(NAMESPACE)
        cluster.api.create(f"{GROUP}/queues", queue("one", gpus=1))
        yield made
    finally:
        made.kill()


@pytest.fixture(scope="module")
def operator(cluster: Cluster, volcano: Volcano, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OperatorProcess]:
    """The operator of the jobs' namespace."""
    folder: Path = tmp_path_factory.mktemp("operator")
    process = OperatorProcess(cluster.kubeconfig, folder, namespaces=NAMESPACE).start()
    yield process
    assert process.stop() == 0, process.log.read_text()


@pytest.fixture
def jobs(request: pytest.FixtureRequest, cluster: Cluster, operator: OperatorProcess) -> Iterator[QueuedJobs]:
    """No job is left of it, whose PodGroup would be in the next test's way."""
    made = QueuedJobs(cluster, GROUPS, "volcano", request.node.name)
    yield made
    made.delete()


def waits(job: JobOn, attempt: int) -> None:
    """Until this attempt's PodGroup is known to Volcano, and none of its pods has a node."""

    def holds() -> bool:
        pods = job.pods()
        numbers = [pod["metadata"]["labels"]["dapo.io/attempt"] for pod in pods]
        return numbers == [str(attempt)] * 2 and not any(pod["spec"].get("nodeName") for pod in pods)

    job.wait(holds, f"attempt {attempt} of {job.name} waits")
    path = f"{GROUPS}/{job.name}-{attempt}"
    job.wait(lambda: "phase" in job.kubernetes.api.get(path).get("status", {}), f"Volcano has seen {job.name}")


def test_b2_a_crash_does_not_starve_the_job_by_its_own_group(jobs: QueuedJobs) -> None:
    job = jobs.submit("job", "one").wait_phase("Training")
    finish(jobs.cluster.api, job.pod("head"), 1)
    job.wait_attempt(2)
    assert jobs.reserved() == [f"{job.name}-2"]


def test_the_room_of_whoever_is_suspended_is_another_jobs(jobs: QueuedJobs) -> None:
    first = jobs.submit("first", "one").wait_phase("Training")
    second = jobs.submit("second", "one")
    waits(second, 1)
    first.edit(suspend=True)
    first.wait_phase("Suspended")
    second.wait_phase("Training")
    assert jobs.reserved() == [f"{second.name}-1"]
    first.edit(suspend=False)
    waits(first, 2)
    succeed(second)
    first.wait_attempt(2)


def test_suspended_and_deleted_while_queued(jobs: QueuedJobs) -> None:
    first, second, third = (
        jobs.submit("first", "one").wait_phase("Training"),
        jobs.submit("second", "one"),
        jobs.submit("third", "one"),
    )
    for job in (second, third):
        waits(job, 1)
    second.edit(suspend=True)
    second.wait_phase("Suspended")
    third.delete()
    third.wait_gone()
    jobs.cluster.wait_until(lambda: jobs.reserved() == [f"{first.name}-1"], "only the running job has a group")
    second.edit(suspend=False)
    waits(second, 2)
    first.delete()
    second.wait_attempt(2)


def test_a_deleted_group_is_made_again(jobs: QueuedJobs) -> None:
    job = jobs.submit("job", "one").wait_phase("Training")
    jobs.cluster.api.delete(f"{GROUPS}/{job.name}-1")
    job.wait(lambda: jobs.reserved() == [f"{job.name}-1"], "its group is back")
    assert job.status()["attempts"][-1]["number"] == 1


def test_volcano_is_away(jobs: QueuedJobs, volcano: Volcano) -> None:
    job = jobs.submit("job", "one").wait_phase("Training")
    volcano.kill()
    try:
        finish(jobs.cluster.api, job.pod("head"), 1)
        job.wait(lambda: jobs.reserved() == [f"{job.name}-2"], "the next attempt asks")
    finally:
        volcano.start()
    job.wait_attempt(2)


def test_the_operator_is_away(jobs: QueuedJobs, operator: OperatorProcess) -> None:
    first = jobs.submit("first", "one").wait_phase("Training")
    second = jobs.submit("second", "one")
    waits(second, 1)
    operator.kill()
    try:
        finish(jobs.cluster.api, first.pod("head"), 1)
        first.edit(suspend=True)
    finally:
        operator.start()
    first.wait_phase("Suspended")
    second.wait_phase("Training")
