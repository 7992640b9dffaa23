"""Jobs in the queues of a real scheduler, as a test submits and follows them."""

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cluster_jobs import JobOn
from run_reports import report
from servers.kubernetes import Cluster
from servers.kubernetes_api import Object
from servers.kubernetes_pods import finish

from dapo_core.db import WriteBatch, open_reader, open_writer
from dapo_core.objectstore import FolderStore
from dapo_core.run.checkpoint import Manifest
from dapo_core.run.reasons import ExitCode
from dapo_trainer.checkpoints.checkpoint_store import CheckpointStore, LocalCheckpoint


class QueuedJobs:
    """Jobs of one test, of one GPU each unless it says otherwise. `reservations`: where their scheduler has them."""

    def __init__(self, cluster: Cluster, reservations: str, scheduler: str, test: str) -> None:
        self.cluster, self.reservations, self._scheduler = cluster, reservations, scheduler
        self.namespace = reservations.split("/")[-2]
        self._prefix = re.sub(r"[^a-z0-9]+", "-", test.removeprefix("test_"))[:24].strip("-")
        self._jobs: list[JobOn] = []

    def submit(self, name: str, queue: str | None, policy: Object | None = None, **groups: Any) -> JobOn:
        """Create one, named after its test; `policy` is more of its runPolicy."""
        job = JobOn(self.cluster, self.namespace, f"{self._prefix}-{name}")
        self._jobs.append(job)
        gang = {"scheduler": self._scheduler} | ({"queue": queue} if queue else {})
        return job.submit(runPolicy={"gang": gang} | (policy or {}), **groups)

    def reserved(self) -> list[str]:
        """The reservations of all jobs, by name."""
        return sorted(each["metadata"]["name"] for each in self.cluster.api.items(self.reservations))

    def delete(self) -> None:
        """Delete all, and wait until nothing of them is left."""
        for job in self._jobs:
            if not job.gone():
                job.delete()
        for job in self._jobs:
            job.wait_gone()
        self.cluster.wait_until(lambda: self.reserved() == [], "nothing is reserved")


def succeed(job: JobOn, attempt: int = 1) -> JobOn:
    """Its run is complete."""
    for role in ("head", "trainer"):
        finish(job.kubernetes.api, job.pod(role, attempt), 0)
    return job.wait_phase("Succeeded")


def ended(job: JobOn, attempt: int = 1) -> tuple[str, int]:
    """Why an attempt ended, and how many restarts count."""
    status = job.status()
    return status["attempts"][attempt - 1]["reason"], status["restartsCounted"]


# Its head stays, after it was asked to end, until it is deleted for good: as long as a driver takes for a checkpoint.
DRIVEN: Any = {"head": {"podTemplate": {"metadata": {"annotations": {"tests.dapo.io/end": "by-hand"}}}}}


class Driver:
    """Plays the driver of a job, whose pods run nothing: it counts steps, reports them, and at the end that it is asked
    for saves a checkpoint, with the code and into the stores of the real one."""

    def __init__(self, job: JobOn, folder: Path, metadata_url: str) -> None:
        self._job, self._folder = job, folder
        self._run: str = job.status()["runId"]
        self._writer = open_writer(metadata_url)
        reader = open_reader(metadata_url)
        job.wait(lambda: reader.attempts(self._run), f"the run of {job.name} is on record")
        self._checkpoints = CheckpointStore(FolderStore(folder / "store"), self._run)
        self.step = 0

    @contextmanager
    def trains(self, attempt: int) -> Iterator[None]:
        """Steps until the head is asked to end, from the newest checkpoint on."""
        restored = self.restore(attempt)
        self.step = restored.step if restored is not None else 0
        thread = threading.Thread(target=self._train, args=(attempt,))
        thread.start()
        try:
            yield
        finally:
            thread.join()

    def restore(self, attempt: int) -> Manifest | None:
        """The checkpoint that an attempt starts from, verified and on the disk."""
        return self._checkpoints.restore_newest(self._folder / f"attempt-{attempt}")

    def _train(self, attempt: int) -> None:
        while "deletionTimestamp" not in (head := self._job.pod("head", attempt))["metadata"]:
            self.step += 1
            report(self._writer, self._run, self.step)
        saved = self._folder / f"global_step_{self.step}"
        saved.mkdir(parents=True)
        (saved / "model.pt").write_bytes(b"weights of step %d" % self.step)
        manifest = self._checkpoints.commit(LocalCheckpoint(self.step, saved, attempt, "digest"))
        self._writer.write(self._run, WriteBatch(checkpoints=[manifest.row(self._checkpoints.uri_of(manifest))]))
        finish(self._job.kubernetes.api, head, ExitCode.TERMINATED)
        path = f"/api/v1/namespaces/{self._job.namespace}/pods/{head['metadata']['name']}"
        self._job.kubernetes.api.delete(path, gracePeriodSeconds=0)
