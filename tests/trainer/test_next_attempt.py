"""A pod that outlives its attempt: when it stays, for which attempt, and that nothing of the old one is left."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from builders import dumped, job
from patience import patient
from prompt_rows import model

from dapo_core.objectstore import FolderStore
from dapo_core.run.log_keys import PodLog
from dapo_trainer.pod.gate import Gate
from dapo_trainer.pod.next_attempt import next_environment
from dapo_trainer.process.processes import environment_of

RUN = "math-20261121-0412-x7k2"
POD = {
    "DAPO_ROLE": "trainer",
    "DAPO_INDEX": "3",
    "DAPO_ATTEMPT": "2",
    "DAPO_RUN_ID": RUN,
    "DAPO_RESTART": "InPlace",
    "DAPO_HEAD_ADDRESS": "math-head-2-0.math.team.svc:6379",
    "DAPO_WORK_DIR": "/var/lib/dapo/attempt-2",
}

# The program of a pod, as `pod.__main__` is: recorded from its first line on.
PROGRAM = """
import os, signal, subprocess, sys, time
from pathlib import Path
from dapo_trainer.pod.recorded_output import record_output
record_output(os.environ)
attempt, ready = int(os.environ["DAPO_ATTEMPT"]), Path(os.environ["DAPO_READY_FILE"])
Path(os.environ["DAPO_WORK_DIR"]).mkdir(parents=True, exist_ok=True)
print("attempt", attempt, os.environ["DAPO_HEAD_ADDRESS"], os.environ["DAPO_WORK_DIR"], flush=True)
print("pod", os.getppid(), ready.exists(), os.environ.get("DAPO_TRAINERS_STAYED"), flush=True)
{}
"""
# As Ray's daemons are: in a session of its own, and an orphan.
DAEMON = "subprocess.run(['sh', '-c', 'setsid sleep 600 & echo daemon $!'], stdout=1)\n"
JOINED = "ready.touch()\n"
LOST = "sys.exit(30 if attempt < 4 else 0)\n"


@pytest.fixture
def variables(tmp_path: Path) -> dict[str, str]:
    for attempt in (1, 2):
        (tmp_path / f"work/attempt-{attempt}/checkpoints").mkdir(parents=True)
    places = {
        "DAPO_STORE_URL": FolderStore(tmp_path / "store").url,
        "DAPO_READY_FILE": str(tmp_path / "ready"),
        "DAPO_TERMINATION_LOG": str(tmp_path / "words"),
        "DAPO_WORK_DIR": str(tmp_path / "work/attempt-2"),
    }
    return {**os.environ, **POD, **places}


def run(code: str, variables: dict[str, str]) -> tuple[int, list[list[str]]]:
    """The exit code of a pod whose program is `code`, and the words of each line that it printed."""
    program = PROGRAM.format(code)
    ended = subprocess.run([sys.executable, "-c", program], env=variables, stdout=subprocess.PIPE, timeout=patient(120))
    return ended.returncode, [line.split() for line in ended.stdout.decode().splitlines()]


def said(lines: list[list[str]], word: str) -> list[list[str]]:
    return [line[1:] for line in lines if line[0] == word]


def test_the_environment_of_the_next_attempt() -> None:
    following = next_environment(POD)
    changed = {name: value for name, value in following.items() if POD.get(name) != value}
    assert changed == {
        "DAPO_ATTEMPT": "3",
        "DAPO_HEAD_ADDRESS": "math-head-3-0.math.team.svc:6379",
        "DAPO_WORK_DIR": "/var/lib/dapo/attempt-3",
        "DAPO_TRAINERS_STAYED": "1",
    }
    assert next_environment(following)["DAPO_ATTEMPT"] == "4"


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("DAPO_HEAD_ADDRESS", "10.0.0.7:6379", "not a head of attempt 2"),
        ("DAPO_HEAD_ADDRESS", "math-head-1-0.math.team.svc:6379", "not a head of attempt 2"),
        ("DAPO_ATTEMPT", "two", "invalid literal"),
    ],
    ids=["an address", "another attempt's head", "no number"],
)
def test_an_environment_that_no_operator_made(name: str, value: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        next_environment(POD | {name: value})


def test_a_pod_serves_attempt_after_attempt_and_leaves_no_process_behind(
    variables: dict[str, str], tmp_path: Path
) -> None:
    code, lines = run(DAEMON + JOINED + LOST, variables)
    assert code == 0
    attempts, pods = said(lines, "attempt"), said(lines, "pod")
    work = tmp_path / "work"
    assert attempts == [[str(n), f"math-head-{n}-0.math.team.svc:6379", str(work / f"attempt-{n}")] for n in (2, 3, 4)]
    # One first process, which was not ready before it had joined.
    assert pods == [[pods[0][0], "False", stayed] for stayed in ("None", "1", "1")]
    *ended, last = [int(pid) for (pid,) in said(lines, "daemon")]
    assert not any(psutil.pid_exists(pid) for pid in ended)
    os.kill(last, signal.SIGKILL)  # nobody ends what a finished pod leaves: its container does
    # The disk keeps the two attempts that ended last: one of them has the newest checkpoint.
    assert sorted(path.name for path in work.iterdir()) == ["attempt-2", "attempt-3", "attempt-4"]
    stored = {info.key.split("/")[2] for info in FolderStore(tmp_path / "store").list(f"{RUN}/logs/")}
    assert stored == {"attempt-2", "attempt-3", "attempt-4"}
    assert PodLog(3, "trainer", 3).pod == "trainer-3"


@pytest.mark.parametrize(
    ("program", "changed", "code"),
    [
        ("sys.exit(30)", {}, 30),
        (JOINED + "sys.exit(0)", {}, 0),
        (JOINED + "sys.exit(15)", {}, 15),
        (JOINED + "os.kill(os.getpid(), 9)", {}, 137),
        (JOINED + "sys.exit(30)", {"DAPO_RESTART": ""}, 30),
        (JOINED + "sys.exit(30)", {"DAPO_HEAD_ADDRESS": "10.0.0.7:6379"}, 30),
        (JOINED + "os.kill(os.getppid(), 15); time.sleep(600)", {}, 143),
    ],
    ids=["never joined", "done", "an unfit node", "killed", "not asked to", "one machine", "terminated"],
)
def test_a_pod_that_ends(program: str, changed: dict[str, str], code: int, variables: dict[str, str]) -> None:
    ended, lines = run(program, variables | changed)
    assert (ended, len(said(lines, "attempt"))) == (code, 1)


@pytest.fixture
def waiting(variables: dict[str, str]) -> Iterator["subprocess.Popen[bytes]"]:
    """A pod that has stayed, and waits."""
    program = PROGRAM.format(JOINED + "if attempt == 2: sys.exit(30)\nprint('waits', flush=True)\ntime.sleep(600)")
    process = subprocess.Popen([sys.executable, "-c", program], env=variables, stdout=subprocess.PIPE)
    yield process
    process.kill()
    process.communicate()


def test_a_pod_that_stayed_hears_a_signal(waiting: "subprocess.Popen[bytes]") -> None:
    assert waiting.stdout is not None
    while waiting.stdout.readline() != b"waits\n":
        assert waiting.poll() is None
    waiting.send_signal(signal.SIGTERM)
    waiting.communicate(timeout=patient(60))
    assert waiting.returncode == 143


NAMES = """
import re, socket
from_system = socket.getaddrinfo

def of_heads(host, *arguments, **named):
    head = re.match(r"first-head-(\\d+)-0\\.", str(host))
    return from_system(f"127.0.9.{head[1]}" if head else host, *arguments, **named)

socket.getaddrinfo = of_heads
"""


# As `ray start`, it returns when the raylet runs.
RAY = """#!/bin/sh
setsid {folder}/raylet 600 &
until [ "$(cat /proc/$!/comm)" = raylet ]; do sleep 0.1; done
setsid sleep 601 &
"""


def _name(process: psutil.Process) -> str:
    with suppress(psutil.NoSuchProcess):
        return str(process.name())
    return ""


class Gang:
    """The trainer pods of a job, as processes: the pod's program with its gate, and in place of Ray two processes, a
    raylet and a rank, that are started as Ray's are."""

    def __init__(self, folder: Path, count: int) -> None:
        self.folder, self.left = folder, list[str]()
        (folder / "sitecustomize.py").write_text(NAMES)
        shutil.copy("/bin/sleep", folder / "raylet")
        (folder / "ray").write_text(RAY.format(folder=folder))
        (folder / "ray").chmod(0o755)
        model(folder / "model")
        topology = {"trainer": {"replicas": count, "gpusPerPod": 0}}
        raw = dumped(job(model={"source": (folder / "model").as_uri()}, topology=topology))
        (folder / "job.json").write_text(json.dumps(raw))
        self.pods = [self._pod(index) for index in range(count)]

    def _pod(self, index: int) -> "subprocess.Popen[bytes]":
        place = self.folder / str(index)
        place.mkdir()
        variables = {
            **POD,
            "DAPO_INDEX": str(index),
            "DAPO_JOB": str(self.folder / "job.json"),
            "DAPO_HEAD_ADDRESS": "first-head-2-0.first.team.svc:6379",
            "DAPO_POD_NAME": f"first-trainer-2-{index}",
            "DAPO_POD_IP": f"127.0.8.{index + 1}",
            "DAPO_STORE_URL": FolderStore(self.folder / "store").url,
            "DAPO_WORK_DIR": str(place / "attempt-2"),
            "DAPO_READY_FILE": str(place / "ready"),
            "DAPO_TERMINATION_LOG": str(place / "words"),
            "DAPO_FORK_WORKERS": "0",
            "DAPO_FORK_LAUNCHER": str(self.folder / "ray"),
            "RAY_AUTH_TOKEN": "of the job",
            "PYTHONPATH": os.pathsep.join([str(self.folder), *sys.path]),
        }
        with (place / "log").open("wb") as log:
            command = [sys.executable, "-m", "dapo_trainer.pod", "trainer"]
            return subprocess.Popen(command, env={**os.environ, **variables}, stdout=log, stderr=subprocess.STDOUT)

    def head(self, attempt: int) -> Gate:
        return Gate(f"127.0.9.{attempt}", lambda pod, _role: self.left.append(pod))

    def processes(self, index: int, name: str) -> list[psutil.Process]:
        below = psutil.Process(self.pods[index].pid).children(recursive=True)
        return [process for process in below if _name(process) == name]

    def wait(self, ready: Sequence[bool], what: str) -> float:
        """The seconds until exactly these pods are ready, each with one raylet and one rank."""
        begun = time.monotonic()
        while [self._is_at_work(index) for index in range(len(self.pods))] != list(ready):
            logs = [(self.folder / str(index) / "log").read_text()[-2000:] for index in range(len(self.pods))]
            assert all(pod.poll() is None for pod in self.pods), (what, logs)
            assert time.monotonic() - begun < patient(120), (what, logs)
            time.sleep(0.1)
        return time.monotonic() - begun

    def _is_at_work(self, index: int) -> bool | None:
        """None on the way from one to the other."""
        if not (self.folder / str(index) / "ready").exists():
            return False
        return True if [len(self.processes(index, name)) for name in ("raylet", "sleep")] == [1, 1] else None

    def end(self) -> None:
        for index, pod in enumerate(self.pods):
            for name in ("raylet", "sleep"):
                for process in self.processes(index, name) if pod.poll() is None else ():
                    process.kill()
            pod.kill()
            pod.wait()


@pytest.fixture
def gang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gang]:
    monkeypatch.setenv("RAY_AUTH_TOKEN", "of the job")
    made = Gang(tmp_path, 2)
    yield made
    made.end()


def test_when_a_trainers_ray_dies_both_pods_stay_and_join_the_next_attempt(gang: Gang) -> None:
    driver = gang.head(2)
    gang.wait([True, True], "the first attempt")
    raylet, rank = gang.processes(1, "raylet"), gang.processes(1, "sleep")
    of_others = [*gang.processes(0, "raylet"), *gang.processes(0, "sleep")]
    raylet[0].kill()
    gang.wait([True, False], "the pod has left, the other one trains")
    driver.close(done=False)  # it has noticed, and ends with 30
    gang.wait([False, False], "nobody works for the old attempt")
    assert not any(process.is_running() for process in (*raylet, *rank, *of_others))
    assert [pod.poll() for pod in gang.pods] == [None, None]
    driver = gang.head(3)
    gang.wait([True, True], "the next attempt")
    assert gang.left == []
    variables = [environment_of(gang.processes(index, "raylet")[0]) for index in range(2)]
    assert [each["DAPO_ATTEMPT"] for each in variables] == ["3", "3"]
    driver.close(done=True)
    left = [process for index in range(2) for name in ("raylet", "sleep") for process in gang.processes(index, name)]
    assert [pod.wait(patient(120)) for pod in gang.pods] == [0, 0]
    for process in left:
        process.kill()
