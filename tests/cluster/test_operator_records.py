"""The operator and the metadata store: what it records, what it shows, and what it does about it."""

from collections.abc import Iterator
from time import time

import psycopg
import pytest
from cluster_jobs import JobOn
from run_reports import report
from servers.kubernetes_pods import finish
from servers.postgres import PostgresServer

from dapo_core.db import CheckpointRow, WriteBatch, open_reader, open_writer


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    """A server of its own, since a test stops it."""
    server = PostgresServer(fsync=False)
    try:
        yield server.start()
    finally:
        server.close()


def test_records_progress_and_guards(told: JobOn, metadata_url: str) -> None:
    job, url = told, metadata_url
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

    checkpoint = CheckpointRow(run, 2, 1, "committed", "s3://b/run/2", time())
    writer.write(run, WriteBatch(checkpoints=[checkpoint]))
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
    told_of = {"AttemptStarted", "PodsReady", "Completed"}
    job.wait(
        lambda: {event.reason for event in reader.events(run)} >= told_of, "its events, which are written by themselves"
    )


class TestPostgres:
    @pytest.fixture
    def metadata_url(self, postgres: PostgresServer) -> str:
        return postgres.new_database(upgraded=True)

    def test_an_outage_delays_what_is_known_and_stops_nothing(
        self, told: JobOn, metadata_url: str, postgres: PostgresServer
    ) -> None:
        told.submit(schedule={"steps": 100}).wait_phase("Training")
        run, reader, writer = told.status()["runId"], open_reader(metadata_url), open_writer(metadata_url)
        told.wait(lambda: reader.attempts(run), "the attempt is on record")
        report(writer, run, 2)
        told.wait(lambda: told.status().get("progress", {}).get("step") == 2, "its progress")

        postgres.stop()
        told.wait_reason("ProgressKnown", "MetadataUnreachable")
        assert told.status()["phase"] == "Training"
        finish(told.kubernetes.api, told.pod("trainer"), 137, reason="OOMKilled")
        told.wait_attempt(2)

        postgres.start()
        told.wait_reason("ProgressKnown", "ProgressRead")
        told.wait(lambda: len(reader.attempts(run)) == 2, "what happened meanwhile is on record")
        first = reader.attempts(run)[0]
        assert (first.attempt, first.reason, first.counted) == (1, "OOMKilled", True)
        told.wait(lambda: len([row for row in reader.events(run) if row.reason == "PodsReady"]) == 2, "its story")

    def test_rows_that_are_lost_are_written_again(self, told: JobOn, metadata_url: str) -> None:
        """A database that was put back from a copy of last week."""
        told.submit(schedule={"steps": 100}).wait_phase("Training")
        run, reader = told.status()["runId"], open_reader(metadata_url)
        told.wait(lambda: reader.attempts(run), "the attempt is on record")
        with psycopg.connect(metadata_url.replace("+psycopg", "")) as connection:
            connection.execute("TRUNCATE runs, attempts, events CASCADE")
        assert reader.run(run) is None
        told.wait(lambda: reader.attempts(run), "it is on record again")
        told.wait(lambda: (found := reader.run(run)) and found.state == "Running", "its state is on record again")
        assert (found := reader.run(run)) is not None and found.name == "told"
