"""A real run started as a user starts it, watched from outside, for tests that kill parts of it."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from patience import patient
from spooled import STORED, Point, spooled_points
from sqlalchemy import create_engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool


@dataclass
class DapoRun:
    """A `dapo run` or `dapo resume` in a process of its own, and what it left in its home folder."""

    home: Path
    process: subprocess.Popen[str]
    output: Path
    metadata_url: str

    @property
    def folder(self) -> Path:
        return next(path for path in self.home.iterdir() if path.name.startswith("real"))

    def query(self, sql: str, **parameters: Any) -> list[tuple[Any, ...]]:
        """Rows of the metadata database; none while it is not there, or has no tables."""
        try:
            with create_engine(self.metadata_url, poolclass=NullPool).connect() as connection:
                return [tuple(row) for row in connection.execute(text(sql), parameters)]
        except DBAPIError:
            return []

    def steps(self, metric: str = "actor/entropy") -> list[tuple[int, int]]:
        """(step, attempt) of every point of a metric."""
        return self.query(
            "select step, attempt from curve_points join metric_names using (metric_id)"
            " where name = :metric order by 1, 2",
            metric=metric,
        )

    def spooled(self) -> list[Point]:
        """Every point that its trainers noted on their own disk."""
        return spooled_points(sorted(self.folder.glob("attempt-*/spool")))

    def trainer(self) -> psutil.Process:
        """The trainer's driver process."""
        return next(p for p in psutil.Process(self.process.pid).children() if "dapo_trainer.main" in p.cmdline())

    def below(self, title: str) -> list[psutil.Process]:
        """Processes of the running attempt whose title or command says `title`."""
        return [p for p in self.trainer().children(recursive=True) if title in " ".join(p.cmdline())]

    def wait_until(self, holds: Callable[[], bool], seconds: float, what: str) -> None:
        deadline = time.monotonic() + patient(seconds)
        while not holds():
            assert self.process.poll() is None, f"ended with {self.process.returncode} before {what}:\n{self.tail()}"
            assert time.monotonic() < deadline, f"no {what} within {seconds:g} s:\n{self.tail()}"
            time.sleep(0.2)

    def wait_for_step(self, step: int, attempt: int, seconds: float = 240) -> None:
        self.wait_until(lambda: (step, attempt) in self.steps(), seconds, f"step {step} of attempt {attempt}")

    def tail(self) -> str:
        logs = sorted(self.home.glob("real*/attempt-*/trainer.log"))
        text = self.output.read_text()[-3000:]
        return text + (f"\n--- {logs[-1]}\n" + logs[-1].read_text(errors="replace")[-4000:] if logs else "")

    def end(self, seconds: float) -> int:
        try:
            return self.process.wait(patient(seconds))
        except subprocess.TimeoutExpired:
            pytest.fail(f"still running after {seconds:g} s:\n{self.tail()}")


class Starter:
    """`starter(command, run, environment, **fields)`: `dapo` as a user calls it, on a home folder of its own.

    `environment` names its stores where they are not those of the home folder; `fields` change the small job.
    """

    def __init__(self, folder: Path, job: Callable[..., Path]) -> None:
        self.folder, self.home, self._job = folder, folder / "home", job
        self._started: list[DapoRun] = []

    def __call__(
        self, command: str = "run", run: str | None = None, environment: Mapping[str, str] | None = None, **fields: Any
    ) -> DapoRun:
        arguments = [command, run or str(self._job(**fields))]
        output = self.folder / f"output-{len(self._started)}.txt"
        with output.open("w") as sink:
            process = subprocess.Popen(
                [str(Path(sys.executable).parent / "dapo"), *arguments, "--plain"],
                env={**os.environ, "DAPO_HOME": str(self.home), **(environment or {})},
                stdout=sink,
                stderr=subprocess.STDOUT,
                text=True,
                cwd=self.folder,
            )
        recorded = (environment or {}).get("DAPO_METADATA_URL", f"sqlite:///file:{self.home}/dapo.db?mode=ro&uri=true")
        self._started.append(DapoRun(self.home, process, output, recorded))
        return self._started[-1]

    def close(self) -> None:
        """End what still runs."""
        for each in self._started:
            if each.process.poll() is None:
                each.process.send_signal(signal.SIGTERM)
                time.sleep(0.2)
                each.process.send_signal(signal.SIGINT)
                each.process.wait(patient(60))


def assert_curves_are_whole(run: DapoRun, steps: int) -> None:
    for metric in ("actor/entropy", "dapo/mean_probability", "response_length/mean", "dapo/accuracy/generated"):
        assert sorted({step for step, _ in run.steps(metric)} - {0}) == list(range(1, steps + 1)), metric


def assert_every_point_is_stored_once(run: DapoRun) -> None:
    stored = run.query(STORED)
    spooled = run.spooled()
    assert len(spooled) == len(set(spooled)), "a point is in the spools twice"
    assert len(stored) == len(spooled), (len(stored), len(spooled))
    assert set(stored) == set(spooled), json.dumps(sorted(map(str, set(stored) ^ set(spooled)))[:10])


def leftovers(home: Path) -> list[str]:
    """Processes that still carry a run of `home` in their environment."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("DAPO_WORK_DIR", "").startswith(str(home)):
                found.append(f"{process.pid} {' '.join(process.cmdline())[:80]}")
        except psutil.Error:
            continue
    return found


def kill(process: psutil.Process) -> None:
    os.kill(process.pid, signal.SIGKILL)
