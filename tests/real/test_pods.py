"""A job's pods as processes of this machine, each with an address of its own: one Ray cluster, real verl and vLLM."""

import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from dapo_core.db import AttemptRow, RunRow, open_reader, open_writer, upgrade
from dapo_core.last_words import read as read_last_words
from dapo_core.spec import DAPOJob, load_job

pytestmark = pytest.mark.timeout(600)

PODS = {"head-0": "127.0.1.1", "trainer-0": "127.0.1.2", "rollout-0": "127.0.1.3", "rollout-1": "127.0.1.4"}
SEPARATED = {
    "topology__mode": "Separated",
    "topology__trainer__gpusPerPod": 0,
    "topology__rollout__gpusPerPod": 0,
    "topology__rollout__replicas": 2,
}


class Pods:
    """The pods of one attempt."""

    def __init__(self, folder: Path, job: DAPOJob) -> None:
        self.folder, self.run_id = folder, "pods-run"
        self.metadata_url = f"sqlite:///{folder}/dapo.db"
        (folder / "job.json").write_text(job.model_dump_json(by_alias=True, exclude_none=True))
        upgrade(self.metadata_url)
        writer = open_writer(self.metadata_url)
        writer.create_run(RunRow(self.run_id, "pods", "default", job.model_dump(mode="json"), created_at=time.time()))
        writer.start_attempt(AttemptRow(self.run_id, 1, time.time()))
        self.processes = {name: self._start(name, ip) for name, ip in PODS.items()}

    def _start(self, name: str, ip: str) -> subprocess.Popen[bytes]:
        home = self.folder / name
        home.mkdir()
        places = {
            "DAPO_JOB": self.folder / "job.json",
            "DAPO_RUN_ID": self.run_id,
            "DAPO_ATTEMPT": 1,
            "DAPO_METADATA_URL": self.metadata_url,
            "DAPO_STORE_URL": (self.folder / "store").as_uri(),
            # One file system here: verl's ranks write where the driver says.
            "DAPO_WORK_DIR": self.folder / "attempt-1",
            "DAPO_HEAD_ADDRESS": f"{PODS['head-0']}:6379",
            "DAPO_POD_IP": ip,
            "DAPO_READY_FILE": home / "ready",
            "DAPO_TERMINATION_LOG": home / "termination-log",
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": _token(),
        }
        with (home / "log").open("w") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "dapo_trainer.pod", name.rpartition("-")[0]],
                env=os.environ | {key: str(value) for key, value in places.items()},
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def ready(self, name: str) -> bool:
        return (self.folder / name / "ready").exists()

    def log(self, name: str) -> str:
        return (self.folder / name / "log").read_text(errors="replace")[-6000:]

    def end(self, name: str, seconds: float) -> int:
        try:
            return self.processes[name].wait(seconds)
        except subprocess.TimeoutExpired:
            pytest.fail(f"{name} still runs after {seconds:g} s:\n{self.log(name)}")


_TOKENS: list[str] = []


def _token() -> str:
    """One for all pods of a job, of the length that Ray asks for."""
    if not _TOKENS:
        _TOKENS.append(secrets.token_hex(32))
    return _TOKENS[0]


@pytest.fixture
def pods(tmp_path: Path, job_file: Callable[..., Path]) -> Iterator[Callable[..., Pods]]:
    started: list[Pods] = []

    def start(**fields: Any) -> Pods:
        started.append(Pods(tmp_path, load_job(job_file(**fields))))
        return started[-1]

    yield start
    for process in psutil.process_iter():
        try:
            if process.environ().get("DAPO_JOB") == f"{tmp_path}/job.json":
                process.kill()
        except psutil.Error:
            continue
    for job in started:
        for pod in job.processes.values():
            pod.wait(30)


def test_the_pods_of_a_job_train_together(pods: Callable[..., Pods]) -> None:
    job = pods(schedule__steps=3, **SEPARATED)
    assert job.end("head-0", 400) == 0, job.log("head-0")

    assert all(job.ready(name) for name in PODS)
    words = read_last_words(job.folder / "head-0" / "termination-log")
    assert words is not None and (words.reason, words.step) == ("Completed", 3)
    reader = open_reader(job.metadata_url)
    assert [point.step for point in reader.curve(job.run_id, "actor/entropy")] == [1, 2, 3]
    for name in ("trainer-0", "rollout-0", "rollout-1"):
        assert job.end(name, 60) == 0, job.log(name)


def test_a_pod_that_has_to_go_costs_no_step(pods: Callable[..., Pods]) -> None:
    job = pods(schedule__steps=1000, **SEPARATED)
    reader = open_reader(job.metadata_url)
    deadline = time.monotonic() + 300
    while not reader.curve(job.run_id, "actor/entropy"):
        assert job.processes["head-0"].poll() is None, job.log("head-0")
        assert time.monotonic() < deadline, job.log("head-0")
        time.sleep(0.5)

    job.processes["rollout-1"].terminate()
    assert job.end("head-0", 120) == 143, job.log("head-0")
    assert job.end("rollout-1", 60) == 143, job.log("rollout-1")

    last = max(point.step for point in reader.curve(job.run_id, "actor/entropy"))
    committed = {row.step for row in reader.checkpoints(job.run_id) if row.state == "committed"}
    assert last in committed, (last, committed)
