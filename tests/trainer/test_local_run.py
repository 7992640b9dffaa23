"""`dapo run` from outside: real processes, a fake trainer, and everything that can happen to them."""

import fcntl
import json
import os
import pty
import signal
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from builders import MINIMAL
from patience import patient

from dapo_core.db import open_reader
from dapo_core.jobspec.presets import merged
from dapo_core.run.home import Home
from dapo_trainer.process.run_folder import RunFolder
from dapo_trainer.process.tree import ProcessTree

SUPERVISE = Path(__file__).parent / "fakes" / "supervise.py"
RUN_ID = "first-20261121-0412-x7k2"
Plan = dict[str, Any]


@dataclass
class Bench:
    """A home with one job, and the means to run it."""

    home: Home

    @property
    def run(self) -> RunFolder:
        return RunFolder(self.home.path / RUN_ID)

    def job(self, guards: Sequence[Plan] = (), **policy: Any) -> None:
        policy = {"backoffSeconds": 1, "backoffMaxSeconds": 1} | policy
        spec = {"spec": {"runPolicy": policy, "schedule": {"steps": 4}, "guards": list(guards)}}
        (self.home.path / f"{RUN_ID}.yaml").write_text(yaml.safe_dump(merged(MINIMAL, spec)))

    def start(self, plan: Plan | None = None, mode: str = "plain") -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [sys.executable, str(SUPERVISE), str(self.home.path), RUN_ID, mode],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "FAKE_PLAN": json.dumps(plan or {})},
        )

    def finish(self, process: "subprocess.Popen[str]") -> tuple[int, str]:
        out, err = process.communicate(timeout=patient(60))
        return process.returncode, out + err

    def all_of(self, plan: Plan | None = None, mode: str = "plain") -> tuple[int, str]:
        return self.finish(self.start(plan, mode))

    def rows(self) -> tuple[str, list[tuple[int, str | None, int | None, bool | None]]]:
        """The run's state and, by attempt, its reason, exit code and whether it counted."""
        reader = open_reader(self.home.metadata_url)
        row = reader.run(RUN_ID)
        assert row is not None
        return row.state, [(a.attempt, a.reason, a.exit_code, a.counted) for a in reader.attempts(RUN_ID)]

    def steps(self) -> list[int]:
        return [point.step for point in open_reader(self.home.metadata_url).curve(RUN_ID, "actor/entropy")]

    def left(self) -> list[str]:
        return [f"{process.pid} {process.info['name']}" for process in ProcessTree.of(self.run).alive()]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    one = Bench(Home(tmp_path))
    one.job()
    yield one
    ProcessTree.of(one.run).end()
    end_orphans(one)


def end_orphans(bench: Bench) -> None:
    """One whose parents were killed before anybody saw it is nobody's; they are fakes/fake_trainer.py's."""
    for process in psutil.process_iter(["cmdline"]):
        if f"orphan of {bench.run.path}" in " ".join(process.info["cmdline"] or []):
            with suppress(psutil.NoSuchProcess):
                process.kill()


def until(done: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + patient(seconds)
    while not done():
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.05)


def logged(bench: Bench, attempt: int, text: str) -> Callable[[], bool]:
    log = bench.run.attempt(attempt).log
    return lambda: log.exists() and text in log.read_text()


def at_step(bench: Bench, step: int) -> Callable[[], bool]:
    checkpoint = bench.run.path / "fake-checkpoint"
    return lambda: checkpoint.exists() and int(checkpoint.read_text() or 0) >= step


def dying(*actions: str, at: int = 2) -> Plan:
    return {"at": at, "do": list(actions)}


class TestEnds:
    def test_success(self, bench: Bench) -> None:
        code, out = bench.all_of()
        assert code == 0, out
        assert bench.rows() == ("Succeeded", [(1, "Completed", 0, None)])
        assert bench.steps() == [1, 2, 3, 4]
        assert "DONE" in out
        assert f"dapo show {RUN_ID}" in out
        assert "\x1b" not in out
        assert [line.split()[1:3] for line in out.splitlines() if " step " in line[:16]] == [
            ["step", f"{step}/4"] for step in range(1, 5)
        ]

    def test_a_crash_is_restarted_and_counted(self, bench: Bench) -> None:
        code, out = bench.all_of({"attempts": {"1": dying("exit 30 the vLLM server is gone")}})
        assert code == 0, out
        assert bench.rows() == ("Succeeded", [(1, "DistributedFault", 30, True), (2, "Completed", 0, None)])
        assert bench.steps() == [1, 2, 3, 4]
        assert "the vLLM server is gone" in out
        assert "restart 1 of 5" in out

    def test_restarts_come_to_an_end(self, bench: Bench) -> None:
        bench.job(maxRestarts=1)
        code, out = bench.all_of({"attempts": {"1": dying("crash 1"), "2": dying("crash 1")}})
        assert code == 1, out
        state, attempts = bench.rows()
        assert (state, len(attempts)) == ("Failed", 2)
        assert f"dapo resume {RUN_ID}" in out

    def test_bad_data_is_not_tried_again_and_says_why(self, bench: Bench) -> None:
        code, out = bench.all_of({"attempts": {"1": dying("exit 11 row 3 of train.parquet has no prompt", at=0)}})
        assert code == 11, out
        assert bench.rows() == ("Failed", [(1, "BadData", 11, None)])
        assert "row 3 of train.parquet has no prompt" in out

    def test_an_unexplained_end_quotes_the_log(self, bench: Bench) -> None:
        bench.job(maxRestarts=0)
        code, out = bench.all_of({"attempts": {"1": dying("print Segmentation fault in libfoo", "crash 139")}})
        assert code == 139, out
        assert "Segmentation fault in libfoo" in out

    def test_the_deadline_ends_a_run_after_a_checkpoint(self, bench: Bench) -> None:
        bench.job(activeDeadlineSeconds=1)
        code, out = bench.all_of({"steps": 1000, "seconds": 0.2})
        assert code == 143, out
        assert bench.rows()[0] == "Failed"
        assert "activeDeadlineSeconds (1 s)" in out


class TestStops:
    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "kill"])
    def test_one_signal_saves_and_stops(self, bench: Bench, number: signal.Signals) -> None:
        process = bench.start({"steps": 1000})
        until(at_step(bench, 2))
        process.send_signal(number)
        code, out = bench.finish(process)
        assert code == 143, out
        assert bench.rows()[0] == "Stopped"
        assert f"dapo resume {RUN_ID}" in out
        assert bench.left() == []

    def test_a_second_signal_stops_at_once(self, bench: Bench) -> None:
        process = bench.start({"steps": 1000, "attempts": {"1": dying("orphans", "deaf", "print deaf", "hang")}})
        until(logged(bench, 1, "deaf"))
        process.send_signal(signal.SIGINT)
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        code, out = bench.finish(process)
        assert code == 137, out
        assert bench.rows()[0] == "Stopped"
        assert bench.left() == []

    def test_a_deaf_trainer_is_killed_after_the_grace_period(self, bench: Bench) -> None:
        bench.job(gracePeriodSeconds=1)
        process = bench.start({"attempts": {"1": dying("deaf", "print deaf", "hang")}})
        until(logged(bench, 1, "deaf"))
        process.send_signal(signal.SIGTERM)
        assert bench.finish(process)[0] == 137
        assert bench.left() == []

    def test_a_stop_between_attempts(self, bench: Bench) -> None:
        bench.job(backoffSeconds=60, backoffMaxSeconds=60)
        process = bench.start({"attempts": {"1": dying("crash 30", at=0)}})
        until(lambda: bench.run.path.exists() and logged(bench, 1, "")() and bench.rows()[0] == "Restarting")
        process.send_signal(signal.SIGINT)
        code, out = bench.finish(process)
        assert (code, bench.rows()[0]) == (30, "Stopped"), out


class TestHangs:
    def test_a_hung_step_leaves_its_stacks_and_is_restarted(self, bench: Bench) -> None:
        bench.job(stallTimeoutSeconds=1)
        code, out = bench.all_of({"attempts": {"1": dying("hang")}})
        assert code == 0, out
        assert bench.rows()[1][0][1:] == ("Stalled", 137, True)
        assert "hang_here_as_planned" in bench.run.attempt(1).log.read_text()
        assert "stallTimeoutSeconds (1 s) after step 2" in out

    def test_a_start_that_never_ends(self, bench: Bench) -> None:
        bench.job(startTimeoutSeconds=1, maxRestarts=0)
        code, out = bench.all_of({"start": 600})
        assert code == 137, out
        assert bench.rows()[1][0][1] == "StartTimeout"


class TestGuards:
    @pytest.mark.parametrize(
        ("action", "code", "state"),
        [("Warn", 0, "Succeeded"), ("Suspend", 21, "Suspended"), ("Fail", 21, "Failed")],
    )
    def test_an_entropy_that_collapses(self, bench: Bench, action: str, code: int, state: str) -> None:
        bench.job(guards=[{"rule": "EntropyCollapse", "action": action, "threshold": 0.05, "forSteps": 3}])
        ended, out = bench.all_of({"steps": 12, "seconds": 0.3, "values": {"actor/entropy": 0.01}})
        assert (ended, bench.rows()[0]) == (code, state), out
        assert out.count("warning: EntropyCollapse: Entropy (actor/entropy) is 0.01 nats per token") == 1
        reached = bench.steps()[-1]
        assert reached == 12 if action == "Warn" else 3 <= reached < 12

    def test_a_failure_rule_comes_before_what_the_guard_says(self, bench: Bench) -> None:
        guard = {"rule": "EntropyCollapse", "action": "Suspend", "threshold": 0.05, "forSteps": 3}
        bench.job(guards=[guard], failureRules=[{"action": "Fail", "reasons": ["EntropyCollapse"]}])
        ended, out = bench.all_of({"steps": 12, "seconds": 0.3, "values": {"actor/entropy": 0.01}})
        assert (ended, bench.rows()[0]) == (21, "Failed"), out
        assert bench.rows()[1][0][:3] == (1, "EntropyCollapse", 21)


class TestProcesses:
    def test_orphans_of_an_attempt_are_gone_before_the_next(self, bench: Bench) -> None:
        """They left parent, session and environment; the log of attempt 2 says how many it still saw."""
        plan = {"attempts": {"1": dying("orphans", "exit 30"), "2": dying("count orphans", at=2)}}
        code, out = bench.all_of(plan)
        assert code == 0, out
        assert "orphans seen: 0" in bench.run.attempt(2).log.read_text()
        assert bench.left() == []

    def test_a_second_process_on_one_run_is_refused(self, bench: Bench) -> None:
        first = bench.start({"steps": 1000})
        until(at_step(bench, 1))
        code, out = bench.all_of()
        assert code == 2, out
        assert f"Process {first.pid} is working on the run" in out
        first.send_signal(signal.SIGINT)
        assert bench.finish(first)[0] == 143

    def test_a_killed_supervisor_takes_its_trainer_along_and_can_be_resumed(self, bench: Bench) -> None:
        process = bench.start({"steps": 1000, "attempts": {"1": dying("orphans")}})
        until(at_step(bench, 4))
        trainer = ProcessTree.of(bench.run).leader
        assert trainer is not None
        process.kill()
        process.communicate()
        until(lambda: not trainer.is_running())
        assert bench.left() != [], "the orphans were to outlive both"
        reached = int((bench.run.path / "fake-checkpoint").read_text())
        code, out = bench.all_of({"steps": reached + 3})
        assert code == 0, out
        assert bench.steps() == list(range(1, reached + 4))
        assert bench.left() == []
        assert [row[0] for row in bench.rows()[1]] == [1, 2]

    def test_a_killed_supervisor_with_a_deaf_trainer(self, bench: Bench) -> None:
        bench.job(gracePeriodSeconds=1)
        process = bench.start({"attempts": {"1": dying("deaf", "print deaf", "hang")}})
        until(logged(bench, 1, "deaf"))
        process.kill()
        process.communicate()
        code, out = bench.all_of()
        assert code == 0, out
        assert "of an earlier attempt" in out
        assert bench.left() == []


@pytest.mark.parametrize("mode", ["live", "plain"])
def test_a_terminal_that_closes_saves_and_stops(bench: Bench, mode: str) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, str(SUPERVISE), str(bench.home.path), RUN_ID, mode],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        # The terminal becomes the controlling one of the new session, as a shell's is.
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0) and None,
        env={**os.environ, "FAKE_PLAN": json.dumps({"steps": 1000}), "TERM": "xterm-256color"},
    )
    os.close(theirs)
    reader = threading.Thread(target=lambda: until(at_step(bench, 3)), daemon=True)
    reader.start()
    while reader.is_alive():
        os.read(ours, 65536)
    os.close(ours)
    assert process.wait(patient(60)) == 143
    assert bench.rows()[0] == "Stopped"
    assert bench.left() == []


def test_quiet_says_only_how_it_ended(bench: Bench) -> None:
    code, out = bench.all_of(mode="quiet")
    assert code == 0
    assert out.strip().startswith("DONE")


def test_a_closed_pipe_does_not_end_the_training(bench: Bench) -> None:
    process = bench.start({"steps": 10})
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(patient(60)) == 0
    assert bench.rows()[0] == "Succeeded"
    assert process.stderr is not None
    process.stderr.close()
