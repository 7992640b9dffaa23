"""A trainer that hangs notices it itself."""

import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from patience import patient

from dapo_core.jobspec import RunPolicy
from dapo_core.run.deadlines import START_LIMITS, Deadline
from dapo_core.run.last_words import LastWords
from dapo_core.run.reasons import Reason
from dapo_trainer import main
from dapo_trainer.local.attempt import LocalAttempt
from dapo_trainer.pod import pod_roles
from dapo_trainer.pod.node import PodEnvironment
from dapo_trainer.process import phase_watch
from dapo_trainer.process.liveness import SILENT_SECONDS, Heartbeats, heartbeats_of
from dapo_trainer.process.phase_watch import PhaseWatch
from dapo_trainer.process.trainer_process import why

LIMIT = START_LIMITS["starting Ray"]


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def watched() -> tuple[PhaseWatch, Clock, list[Deadline]]:
    clock, hung = Clock(), list[Deadline]()
    return PhaseWatch(RunPolicy(), hung.append, clock=clock), clock, hung


def test_a_start_that_never_leaves_starting_ray_hangs() -> None:
    watch, clock, hung = watched()
    watch.enter("start", "starting Ray")
    clock.now += LIMIT - 1
    assert not watch.look()
    clock.now += 1
    assert watch.look()
    assert [late.message for late in hung] == ["The trainer hangs: 'starting Ray' has lasted for 300 s."]
    clock.now += LIMIT
    assert not watch.look(), "it is said once"


def test_its_thread_says_that_it_runs_until_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(phase_watch, "LOOK_SECONDS", 0.001)
    watch, _, _ = watched()
    watch.start()
    end = time.monotonic() + patient(10)
    while watch.liveness.value < 3:
        assert time.monotonic() < end
        time.sleep(0.001)
    watch.stop()
    assert watch.liveness.value == 0
    watch._count()
    assert watch.liveness.value == 0, "uploads may take longer than a hang"


RANK = """
import sys, time
from pathlib import Path
from dapo_trainer.process.liveness import beat
beat(Path(sys.argv[1]), 0.01)
time.sleep(600)
"""


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + patient(30)
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_rank_that_does_not_run_is_silent_until_it_goes_on(tmp_path: Path) -> None:
    rank = subprocess.Popen([sys.executable, "-c", RANK, str(tmp_path)])
    try:
        heartbeats, file = Heartbeats(tmp_path), tmp_path / str(rank.pid)
        until(file.exists)
        looks = itertools.count(1000.0, 5.0)
        assert heartbeats.silent(next(looks)) == []
        rank.send_signal(signal.SIGSTOP)
        os.waitpid(rank.pid, os.WUNTRACED)
        heartbeats.silent(next(looks))  # of what it did until then
        found = [heartbeats.silent(next(looks)) for _ in range(int(SILENT_SECONDS / 5))]
        assert found[:-2] == [[]] * (len(found) - 2) and found[-1] == [rank.pid]
        rank.send_signal(signal.SIGCONT)
        stood = file.stat().st_mtime_ns
        until(lambda: file.stat().st_mtime_ns != stood)
        assert heartbeats.silent(next(looks)) == []
    finally:
        rank.kill()
        rank.wait()
    assert heartbeats.silent(next(looks)) == [] and not file.exists(), "one that has ended is not silent"


def test_time_in_which_the_machine_was_suspended_is_no_silence(tmp_path: Path) -> None:
    (tmp_path / str(os.getpid())).touch()
    (tmp_path / "notes.txt").touch()
    heartbeats = Heartbeats(tmp_path)
    assert [heartbeats.silent(now) for now in (0.0, 86_400.0, 172_800.0)] == [[], [], []]


def test_a_pod_with_a_silent_rank_is_not_ready(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_roles, "heartbeats_of", lambda _: tmp_path)
    pod = PodEnvironment(tmp_path / "job", "head:6379", tmp_path / "pod" / "ready", "trainer", "10.0.0.8", 1 << 30)
    pod.report_ready()
    rank, ranks = tmp_path / str(os.getpid()), pod_roles._Ranks(pod)
    for number in range(40):  # no rank yet: it joins, and the driver builds the model later
        ranks.look(number * 5.0)
    assert pod.ready.exists()
    rank.touch()
    seen = []
    for number in range(40, 80):
        ranks.look(number * 5.0)
        seen.append(pod.ready.exists())
    assert seen.index(False) == SILENT_SECONDS / 5 and not any(seen[seen.index(False) :])
    os.utime(rank, (1.0, 1.0))
    ranks.look(80 * 5.0)
    assert pod.ready.exists()


@pytest.mark.parametrize(
    ("environment", "folder"),
    [({}, None), ({"DAPO_NODE_IP": "10.0.0.8"}, Path("/dev/shm/dapo-heartbeats-10.0.0.8"))],
    ids=["dapo run", "a pod"],
)
def test_heartbeats_are_those_of_a_pod(environment: dict[str, str], folder: Path | None) -> None:
    assert heartbeats_of(environment) == folder


def test_a_trainer_that_gets_on_does_not() -> None:
    watch, clock, hung = watched()
    watch.enter("start", "starting Ray")
    clock.now += LIMIT - 1
    watch.enter("start", "checking model and data")
    clock.now += 100_000
    assert not watch.look()
    assert hung == []


def test_a_trainer_that_ends_waits_for_its_stores_as_long_as_it_takes() -> None:
    watch, clock, hung = watched()
    watch.enter("start", "starting Ray")
    watch.stop()
    clock.now += LIMIT
    assert not watch.look()
    assert hung == []


def test_its_last_words_explain_an_end_that_looks_like_a_kill() -> None:
    assert why(137, LastWords("Stalled", "The trainer hangs.")) == ("Stalled", "The trainer hangs.")
    assert why(137, LastWords("Crashed", "Said before it was killed."))[0] == "Killed"


def test_a_hung_trainer_writes_stacks_and_ends_as_if_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    ends: list[tuple[int, LastWords]] = []
    dumped: list[Path] = []
    monkeypatch.setattr(main, "exit_now", lambda code, words: ends.append((code, words)))
    monkeypatch.setattr(main, "dump_stacks", lambda processes, log: dumped.append(log) or log.write_text("a worker's"))
    attempt = main.TrainingAttempt.__new__(main.TrainingAttempt)
    attempt.environment = SimpleNamespace(work=tmp_path)  # type: ignore[assignment]
    attempt._session = None
    attempt._spool = attempt._sender = Closing()  # type: ignore[assignment]
    end: Callable[[Deadline], None] = attempt._end_hung  # it returns: the process is not really ended
    end(Deadline(0.0, Reason.STALLED, "The trainer hangs."))
    shown = capfd.readouterr()
    assert "test_phase_watch.py" in shown.err, "its own stacks"
    assert "a worker's" in shown.out
    assert ends == [(137, LastWords("Stalled", "The trainer hangs."))]


class Closing:
    """A spool or a sender."""

    def event(self, *_: object, **__: object) -> None: ...

    def close(self, seconds: float) -> bool:
        return True


@pytest.mark.parametrize(("name", "can"), [("there", True), ("missing", False)])
def test_a_folder_that_cannot_be_written_says_nothing_about_the_trainer(tmp_path: Path, name: str, can: bool) -> None:
    (tmp_path / "there").mkdir()
    attempt = LocalAttempt.__new__(LocalAttempt)
    attempt.folder = SimpleNamespace(path=tmp_path / name)  # type: ignore[assignment]
    assert attempt._can_report() == can
    assert list(tmp_path.iterdir()) == [tmp_path / "there"]
    assert list((tmp_path / "there").iterdir()) == []
