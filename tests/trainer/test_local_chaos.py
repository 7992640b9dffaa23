"""What `dapo chaos` does to a run on this machine: its own processes are found, hit and watched."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from patience import patient

from dapo_core.cli.chaos import ChaosRequest, NoTargetError
from dapo_core.errors import SpecError
from dapo_core.run.fault_plan import FaultKind, PlannedFault
from dapo_core.run.home import Home
from dapo_trainer.local.process_faults import LocalTarget, find_local_run
from dapo_trainer.process.run_folder import RunFolder
from dapo_trainer.process.trainer_process import Heartbeat
from dapo_trainer.process.tree import ProcessTree

RUN = "math-20261121-0412-x7k2"
SLEEP = "import time; time.sleep(600)"


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path / RUN)
    folder.path.mkdir()
    folder.job_file.write_text("{}")
    return folder


@pytest.fixture
def trainer(run: RunFolder) -> Iterator[list[psutil.Process]]:
    """A driver, two engines and a rank, as far as their titles and variables go; and an engine of another run."""
    variables = {"DAPO_RUN_ID": RUN, "DAPO_WORK_DIR": f"{run.path}/attempt-1"}
    titles = ["driver", "VLLM::EngineCore", "VLLM::EngineCore", "ray::WorkerDict"]
    started = [
        subprocess.Popen([sys.executable, "-c", SLEEP, title], env={**os.environ, **environment})
        for title, environment in [*((title, variables) for title in titles), ("VLLM::EngineCore", {})]
    ]
    ProcessTree(RUN, run.path, run.processes).started(started[0].pid)
    yield [psutil.Process(process.pid) for process in started]
    for process in started:
        process.kill()
        process.wait()


def request(run: RunFolder, *kinds: FaultKind, job: str = RUN) -> ChaosRequest:
    return ChaosRequest(job, None, Home(run.path.parent), frozenset(kinds))


@pytest.mark.parametrize(
    ("role", "draw", "place"),
    [("head", 0.5, 0), ("rollout", 0.0, 1), ("rollout", 0.99, 2), ("trainer", 0.5, 3)],
    ids=["the driver", "an engine", "the other engine", "a rank"],
)
def test_the_process_of_a_role_is_killed(
    run: RunFolder, trainer: list[psutil.Process], role: str, draw: float, place: int
) -> None:
    async def kill() -> str:
        target = await find_local_run(request(run, FaultKind.KILL))
        return await target.inject(PlannedFault(0, FaultKind.KILL, role, draw))  # type: ignore[arg-type]

    hit = asyncio.run(kill())
    pids = [str(process.pid) for process in trainer]
    # Process ids are ordered as text.
    expected = sorted(pids[1:3])[place - 1] if role == "rollout" else pids[place]
    assert hit == f"{role} process {expected}"
    end = time.monotonic() + patient(20)
    while psutil.Process(int(expected)).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < end
        time.sleep(0.01)
    assert sum(process.status() != psutil.STATUS_ZOMBIE for process in trainer) == 4


def test_an_engine_is_stopped(run: RunFolder, trainer: list[psutil.Process]) -> None:
    before = psutil.Process().children()  # servers of other tests among them
    hit = asyncio.run(LocalTarget(run).inject(PlannedFault(0, FaultKind.WEDGE, "rollout", 0.0)))
    engine = psutil.Process(int(hit.split()[-1]))
    end = time.monotonic() + patient(20)
    while engine.status() != psutil.STATUS_STOPPED:
        assert time.monotonic() < end
        time.sleep(0.01)
    for child in psutil.Process().children():
        if child not in before:  # it would let the engine go on after two minutes and a half
            child.send_signal(signal.SIGKILL)
            child.wait()


def test_what_is_seen_of_a_run(run: RunFolder, trainer: list[psutil.Process]) -> None:
    target = LocalTarget(run)
    assert asyncio.run(target.look()).attempt == 0
    run.attempt(1).path.mkdir()
    Heartbeat("generate", 7, 100, time.time()).write(run.attempt(1).heartbeat)
    seen = asyncio.run(target.look())
    assert (seen.attempt, seen.step, seen.phase, seen.whole) == (1, 6, "generate", True)
    trainer[1].kill()
    trainer[1].wait()
    assert not asyncio.run(target.look()).whole


def test_kinds_that_need_pods_are_refused(run: RunFolder) -> None:
    with pytest.raises(NoTargetError, match="--kind is drain, which needs pods: a local run can be hit by kill, slow"):
        asyncio.run(find_local_run(request(run, FaultKind.KILL, FaultKind.DRAIN)))


@pytest.mark.parametrize(
    ("job", "error", "sentence"),
    [(RUN, NoTargetError, "is not running: start it with"), ("other", SpecError, "There is no run other")],
    ids=["ended", "unknown"],
)
def test_a_run_that_cannot_be_hit(run: RunFolder, job: str, error: type[Exception], sentence: str) -> None:
    with pytest.raises(error, match=sentence):
        asyncio.run(find_local_run(request(run, FaultKind.KILL, job=job)))
