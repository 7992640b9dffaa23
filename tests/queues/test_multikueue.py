"""Jobs that the real MultiKueue runs in another cluster, which is a second control plane."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_jobs import JobOn
from operator_process import OperatorProcess
from queued_jobs import QueuedJobs, succeed
from servers.kubernetes import Cluster
from servers.kubernetes_pods import finish
from servers.kueue import GROUP, KueueController, cluster_queue, flavor, local_queue, worker_clusters

from dapo_operator.jobs.gangs.kueue import MULTIKUEUE

NAMESPACE = "multikueue-jobs"
WORKLOADS = f"{GROUP}/namespaces/{NAMESPACE}/workloads"
QUEUE = "everywhere"
CLUSTER = "other"


def started() -> Iterator[Cluster]:
    made = Cluster()
    try:
        yield made.start(nodes=2)
    finally:
        made.stop()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """The cluster where jobs are submitted. That of the other tests has a Kueue of its own, with other queues."""
    yield from started()


@pytest.fixture(scope="module")
def other() -> Iterator[Cluster]:
    """The cluster where the jobs run."""
    yield from started()


@pytest.fixture(scope="module")
def kueues(cluster: Cluster, other: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Kueue in both clusters, with a queue of two GPUs in both; that of the first sends its jobs to the other."""
    external = {"externalFrameworks": [{"name": "DAPOJob.v1alpha1.dapo.io"}]}
    first = KueueController(cluster, tmp_path_factory.mktemp("first"), multiKueue=external)
    second = KueueController(other, tmp_path_factory.mktemp("second"))
    try:
        for each, kueue in ((cluster, first), (other, second)):
            kueue.install()
            kueue.start()
            each.namespace(NAMESPACE)
            each.api.create(f"{GROUP}/resourceflavors", flavor("fake", {}, []))
        for path, body in worker_clusters("elsewhere", {CLUSTER: other}):
            cluster.api.create(path, body)
        checks = {"admissionChecksStrategy": {"admissionChecks": [{"name": "elsewhere"}]}}
        for each, more in ((cluster, checks), (other, {})):
            queue = cluster_queue(QUEUE, QUEUE, "fake", gpus=2)
            each.api.create(f"{GROUP}/clusterqueues", queue | {"spec": queue["spec"] | more})
            each.api.create(f"{GROUP}/namespaces/{NAMESPACE}/localqueues", local_queue(QUEUE))
        yield
    finally:
        for kueue in (first, second):
            kueue.process.kill()


@pytest.fixture(scope="module")
def operators(
    cluster: Cluster, other: Cluster, kueues: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """The operator in both."""
    folders: list[Path] = [tmp_path_factory.mktemp("operator") for _ in range(2)]
    running = [
        OperatorProcess(each.kubeconfig, folder, namespaces=NAMESPACE).start()
        for each, folder in zip((cluster, other), folders, strict=True)
    ]
    yield
    for process in running:
        assert process.stop() == 0, process.log.read_text()


@pytest.fixture
def jobs(request: pytest.FixtureRequest, cluster: Cluster, other: Cluster, operators: None) -> Iterator[QueuedJobs]:
    """Of a job that is deleted in the first cluster, nothing is left in either."""
    made = QueuedJobs(cluster, WORKLOADS, "kueue", request.node.name)
    yield made
    made.delete()
    other.wait_until(lambda: other.api.items(WORKLOADS) == [], "nothing is reserved in the other cluster")


def test_a_job_of_multikueue_runs_in_the_other_cluster(jobs: QueuedJobs, other: Cluster) -> None:
    """With all its attempts, and what is said of it there is said of it here."""
    job = jobs.submit("job", QUEUE, managedBy=MULTIKUEUE).wait_phase("Training")
    copy = JobOn(other, NAMESPACE, job.name)
    assert (job.pods(), len(copy.pods())) == ([], 2)
    finish(other.api, copy.pod("head"), 1)
    copy.wait_attempt(2)
    job.wait_attempt(2)
    assert [each["metadata"]["name"] for each in other.api.items(WORKLOADS)] == jobs.reserved() == [f"{job.name}-1"]
    succeed(copy, attempt=2)
    job.wait_phase("Succeeded")
    copy.wait_gone()


def test_a_job_of_multikueue_that_is_suspended_or_loses_its_quota(jobs: QueuedJobs, other: Cluster) -> None:
    job = jobs.submit("job", QUEUE, managedBy=MULTIKUEUE).wait_phase("Training")
    copy = JobOn(other, NAMESPACE, job.name)
    first = copy.get()["metadata"]["uid"]
    job.edit(suspend=True)
    copy.wait_gone()
    jobs.cluster.wait_until(lambda: jobs.reserved() == [], "it asks for nothing")
    job.edit(suspend=False)
    copy.wait(lambda: not copy.gone(), "it is there again").wait_phase("Training")
    second = copy.get()["metadata"]["uid"]
    assert first != second
    queue = f"{GROUP}/clusterqueues/{QUEUE}"
    other.api.patch(queue, {"spec": {"stopPolicy": "HoldAndDrain"}})
    try:
        copy.wait_gone()
    finally:
        other.api.patch(queue, {"spec": {"stopPolicy": "None"}})
    copy.wait(lambda: not copy.gone(), "it is there again").wait_phase("Training")
    assert copy.get()["metadata"]["uid"] != second
    job.wait_phase("Training")
