"""`dapo run` and its record in Postgres: killed and resumed, each point is there once; another database is refused."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from builders import MINIMAL
from patience import patient
from servers.postgres import PostgresServer
from typer.testing import CliRunner

from dapo_core.cli.main import app
from dapo_core.db import open_reader
from dapo_core.jobspec.presets import merged
from dapo_trainer.process.run_folder import RunFolder
from dapo_trainer.process.tree import ProcessTree
from dapo_trainer.spool import read_records

SUPERVISE = Path(__file__).parent / "fakes" / "supervise.py"
RUN_ID = "first-20261121-0412-x7k2"
STEPS = 12


@dataclass
class Machine:
    """A folder of runs, and a database of their records."""

    home: Path
    url: str

    def start(self, url: str | None = None, **plan: Any) -> "subprocess.Popen[str]":
        """Run the job, or resume it, with the fake trainer."""
        names = {"DAPO_HOME": str(self.home), "DAPO_METADATA_URL": url or self.url}
        plan = {"steps": STEPS, "seconds": 0.05} | plan
        return subprocess.Popen(
            [sys.executable, str(SUPERVISE), "-", RUN_ID, "plain"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, **names, "FAKE_PLAN": json.dumps(plan)},
        )

    def end(self, process: "subprocess.Popen[str]") -> tuple[int, str]:
        out, _ = process.communicate(timeout=patient(120))
        return process.returncode, out

    def wait_for_step(self, step: int) -> None:
        checkpoint, deadline = self.home / RUN_ID / "fake-checkpoint", time.monotonic() + patient(60)
        while not checkpoint.exists() or int(checkpoint.read_text() or 0) < step:
            assert time.monotonic() < deadline, f"step {step} is not reached"
            time.sleep(0.02)


@pytest.fixture
def machine(postgres: PostgresServer, tmp_path: Path) -> Iterator[Machine]:
    guards = [{"rule": "EntropyCollapse", "action": "Warn", "threshold": 0.05, "forSteps": 3}]
    policy = {"backoffSeconds": 1, "backoffMaxSeconds": 1}
    spec = {"spec": {"schedule": {"steps": STEPS}, "runPolicy": policy, "guards": guards}}
    (tmp_path / f"{RUN_ID}.yaml").write_text(yaml.safe_dump(merged(MINIMAL, spec)))
    yield Machine(tmp_path, postgres.new_database())
    ProcessTree.of(RunFolder(tmp_path / RUN_ID)).end()


def test_killed_and_resumed_each_point_is_there_once(machine: Machine) -> None:
    crash: dict[str, Any] = {"attempts": {"1": {"at": 3, "do": ["exit 30"]}}, "values": {"actor/entropy": 0.01}}
    first = machine.start(**crash)
    machine.wait_for_step(6)
    first.send_signal(signal.SIGKILL)
    machine.end(first)
    code, out = machine.end(machine.start(**crash))
    assert code == 0, out
    reader = open_reader(machine.url)
    run = reader.run(RUN_ID)
    assert run is not None and run.state == "Succeeded" and len(reader.attempts(RUN_ID)) >= 3
    expected = {
        (name, record.step, record.attempt, value)
        for folder in RunFolder(machine.home / RUN_ID).attempts()
        for record in read_records(folder.spool)
        if record.kind == "step"
        for name, value in record.numbers.items()
    }
    newest = {(name, step): value for name, step, _, value in sorted(expected, key=lambda row: row[2])}
    for name in reader.metrics(RUN_ID):
        curve = {(name, point.step): point.value for point in reader.curve(RUN_ID, name)}
        assert curve == {key: value for key, value in newest.items() if key[0] == name}
    assert [point.step for point in reader.curve(RUN_ID, "actor/entropy")] == list(range(1, STEPS + 1))
    alerts = reader.alerts([RUN_ID])
    assert [(alert.rule, alert.action, alert.cleared_at) for alert in alerts] == [("EntropyCollapse", "Warn", None)]
    shown = CliRunner().invoke(app, ["show", RUN_ID], env={"DAPO_METADATA_URL": machine.url})
    assert shown.exit_code == 0 and "Succeeded" in shown.output
    assert RUN_ID in CliRunner().invoke(app, ["runs"], env={"DAPO_METADATA_URL": machine.url}).output


def test_a_run_is_not_resumed_into_another_database(machine: Machine, postgres: PostgresServer) -> None:
    assert machine.end(machine.start(steps=2))[0] == 0
    other = postgres.new_database()
    code, out = machine.end(machine.start(other, steps=3))
    assert code == 2 and f"{RUN_ID} is recorded in postgresql+psycopg://" in out and "not-a-secret" not in out
    assert "set DAPO_METADATA_URL to that database" in out
