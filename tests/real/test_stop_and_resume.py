"""Stopping on purpose and going on, a damaged checkpoint, and a second process on the same run."""

import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from real_run import DapoRun

from dapo_core.exit_codes import ExitCode

pytestmark = pytest.mark.timeout(900)


def test_ctrl_c_saves_and_resume_goes_on_from_the_checkpoint_before_a_damaged_one(
    dapo: Callable[..., DapoRun],
) -> None:
    run = dapo(schedule__steps=8, schedule__checkpointEvery=2)
    run.wait_for_step(5, attempt=1)

    second = dapo("resume", run.folder.name)
    assert second.end(30) == ExitCode.USAGE
    assert "already" in second.output.read_text() or str(run.process.pid) in second.output.read_text()

    run.process.send_signal(signal.SIGINT)
    assert run.end(120) == ExitCode.TERMINATED, run.tail()
    assert f"dapo resume {run.folder.name}" in run.output.read_text()
    stopped_at = run.steps()[-1][0]
    committed = [step for (step,) in run.query("select step from checkpoints where state = 'committed' order by step")]
    assert committed[-1] == stopped_at, "a clean stop saves the last whole step"

    _damage_newest_checkpoint(run.home)
    resumed = dapo("resume", run.folder.name)
    assert resumed.end(240) == 0, resumed.tail()
    assert sorted({step for step, _ in resumed.steps()}) == list(range(1, 9))
    (step_from,) = resumed.query("select step_from from attempts where attempt = 2")[0]
    assert step_from == committed[-2]
    assert resumed.query("select 1 from events where reason = 'CheckpointDamaged'")


def _damage_newest_checkpoint(home: Path) -> None:
    newest = max(home.glob("store/real*/checkpoints/step-*"))
    victim = max((path for path in newest.rglob("*") if path.is_file() and path.suffix == ".pt"), key=_size)
    data = bytearray(victim.read_bytes())
    data[len(data) // 2] ^= 0xFF
    victim.write_bytes(data)


def _size(path: Path) -> int:
    return path.stat().st_size
