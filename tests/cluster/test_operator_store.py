"""The operator and the metadata store: what it records, what it shows, and what it does about it."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_jobs import JobOn, job_on
from operator_process import OperatorProcess
from servers.kubernetes_objects import Kubernetes
from servers.kubernetes_pods import finish

from dapo_core import metrics
from dapo_core.db import CheckpointRow, MetadataWriter, Point, open_reader, open_writer, upgrade


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A store of its own."""
    url = f"sqlite:///{tmp_path}/dapo.db"
    upgrade(url)
    return url


@pytest.fixture
def job(kubernetes: Kubernetes, namespace: str, url: str, tmp_path: Path) -> Iterator[JobOn]:
    """A job whose operator has that store."""
    operator = OperatorProcess(kubernetes.kubeconfig, tmp_path, namespaces=namespace, DAPO_METADATA_URL=url).start()
    try:
        with job_on(kubernetes, namespace, "told") as made:
            yield made
    finally:
        assert operator.stop() == 0, operator.log.read_text()


def report(writer: MetadataWriter, run: str, step: int, entropy: float) -> None:
    """What a trainer tells of a step."""
    values = {metrics.ENTROPY: entropy, metrics.REWARD_GENERATED: 0.25, metrics.STEP_SECONDS: 30.0}
    now = time.time()
    writer.write_points(run, [Point.of(name, step, 1, now, value) for name, value in values.items()])


def test_records_progress_and_guards(job: JobOn, url: str) -> None:
    guards = [{"rule": "EntropyCollapse", "action": "Suspend", "threshold": 0.1, "forSteps": 3}]
    job.submit(guards=guards, schedule={"steps": 100}).wait_phase("Training")
    run, reader, writer = job.status()["runId"], open_reader(url), open_writer(url)
    job.wait(lambda: reader.attempts(run), "the attempt is on record")
    found = reader.run(run)
    assert found is not None and (found.name, found.state, found.total_steps) == ("told", "Running", 100)

    for step in (1, 2):
        report(writer, run, step, 0.5)
    job.wait(lambda: job.status().get("progress", {}).get("step") == 2, "its progress")
    progress = job.status()["progress"]
    assert (progress["entropy"], progress["reward"], progress["eta"]) == (0.5, 0.25, "49m")
    assert job.condition("ProgressKnown")["status"] == "True"

    checkpoint = CheckpointRow(run, 2, 1, "committed", "s3://b/run/2", time.time())
    writer.checkpoint_committed(checkpoint)
    for step in (3, 4, 5):
        report(writer, run, step, 0.01)
    job.wait_phase("Suspended")
    assert job.condition("Suspended")["reason"] == "SuspendedByGuard"
    assert "Entropy" in job.condition("Suspended")["message"]
    assert job.condition("Degraded")["reason"] == "EntropyCollapse"
    assert [alert.rule for alert in reader.alerts([run])] == ["EntropyCollapse"]
    job.wait(lambda: (row := reader.run(run)) is not None and row.state == "Suspended", "the run's state")

    job.edit(guards=[{"rule": "EntropyCollapse", "action": "Warn"}])
    job.wait_attempt(2)
    assert job.status()["attempts"][-1]["fromStep"] == 2
    for role in ("head", "trainer"):
        finish(job.kubernetes.api, job.pod(role, attempt=2), 0)
    job.wait_phase("Succeeded")
    job.wait(lambda: (row := reader.run(run)) is not None and row.state == "Succeeded", "the run's end")
    assert [(row.attempt, row.reason) for row in reader.attempts(run)] == [(1, "EntropyCollapse"), (2, "Completed")]
    assert {event.reason for event in reader.events(run)} >= {"AttemptStarted", "PodsReady", "Completed"}
