"""`dapo runs` and `dapo show`: what a user sees of the metadata store."""

import json
import time
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from dapo_core.cli import runs
from dapo_core.db import AttemptRow, CheckpointRow, EventRow, Point, RunRow, WriteBatch, open_writer, upgrade
from dapo_core.errors import DapoError

RUN = "arith-20261121-0412-x7k2"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A run with two attempts, and one that has only just been made."""
    url, now = f"sqlite:///{tmp_path / 'dapo.db'}", time.time()
    upgrade(url)
    writer = open_writer(url)
    writer.create_run(RunRow(RUN, "arith", created_at=now - 3600, total_steps=60, tags={"seed": "0"}, owner="me"))
    writer.create_run(RunRow("other-1", "other", namespace="team", created_at=now - 7200))
    writer.update_run_state(RUN, "Running", started_at=now - 3500)
    writer.start_attempt(AttemptRow(RUN, 1, now - 3500, step_from=0))
    writer.end_attempt(
        RUN, 1, reason="Killed", message="It was killed.", exit_code=137, counted=True, ended_at=now - 900
    )
    writer.start_attempt(AttemptRow(RUN, 2, now - 800, step_from=20))
    writer.write(RUN, WriteBatch(points(now), events(now), checkpoints(now)))
    return tmp_path


def points(now: float) -> list[Point]:
    found = []
    for step in range(1, 41):
        values = {"dapo/reward/generated": step / 40, "actor/entropy": 1 / step, "response_length/mean": float("nan")}
        if step % 10 == 0:
            values["val-core/addition/acc/mean@8"] = 0.9 if step == 30 else step / 100
        found += [Point.of(name, step, 1 + (step > 20), now - 60, value) for name, value in values.items()]
        begin, seconds = (now - 3300, 100) if step <= 20 else (now - 700 - 20 * 30, 30)
        found.append(Point.of("perf/time_per_step", step, 1 + (step > 20), begin + step * seconds, seconds))
    return found


def events(now: float) -> list[EventRow]:
    return [
        EventRow(RUN, str(number), now - number, "Warning", "EntropyCollapse", f"Sentence {number}.", 2, 39)
        for number in range(20)
    ]


def checkpoints(now: float) -> list[CheckpointRow]:
    states = {10: "deleted", 20: "committed", 30: "committed", 40: "failed"}
    return [
        CheckpointRow(RUN, step, 1, state, "file:///x", now, size_bytes=312_000_000, decision="No space.")  # type: ignore[arg-type]
        for step, state in states.items()
    ]


def call(*arguments: str, columns: int = 140) -> Result:
    app = typer.Typer()
    app.command()(runs.runs)
    app.command()(runs.show)
    return CliRunner().invoke(app, arguments, env={"COLUMNS": str(columns), "DAPO_METADATA_URL": "", "DAPO_HOME": ""})


def test_runs_are_listed_newest_first(home: Path) -> None:
    lines = call("runs", "--home", str(home)).output.splitlines()
    assert lines[1].split()[:6] == [RUN, "Running", "40/60", "2", "1", "-"]
    assert lines[2].split()[:4] == ["other-1", "Created", "-", "0"]
    assert "other-1" not in call("runs", "--home", str(home), "--namespace", "default").output


def test_run_and_state_are_whole_on_a_narrow_terminal(home: Path) -> None:
    first = call("runs", "--home", str(home), columns=80).output.splitlines()[1]
    assert first.split()[:2] == [RUN, "Running"]


def test_runs_as_json(home: Path) -> None:
    found = json.loads(call("runs", "--home", str(home), "--json").output)
    assert [row["run"]["run_id"] for row in found] == [RUN, "other-1"]
    assert found[0]["step"] == 40 and found[0]["values"]["response_length/mean"]["flag"] == "nan"


SHOWN = {
    "state and progress": ["Running", "40/60", "seed=0", "me"],
    "effective time": ["78.8% of 56m with pods; lost: 8m20s Killed, 3m20s Starting"],
    "curves": ["Reward   ▁", "0.025", "Entropy  █"],
    "validation": ["addition mean@8", "10.0%  40.0%  90.0%       30"],
    "attempts": ["Killed (counted): It was killed.", "0 to 20", "20 to 40"],
    "the newest checkpoint": [f"30    committed  312.0 MB  dapo resume {RUN}"],
    "an older checkpoint": [f"checkpoints.resumeFrom: {RUN}@20"],
    "a checkpoint that failed": ["40    failed     312.0 MB  No space."],
    "events": ["step 39  EntropyCollapse  Sentence 0.", "Sentence 9."],
}


@pytest.mark.parametrize("parts", SHOWN.values(), ids=SHOWN.keys())
def test_a_run_is_shown(parts: list[str], home: Path) -> None:
    output = call("show", RUN, "--home", str(home)).output
    assert [part for part in parts if part not in output] == []


def test_what_is_gone_or_has_no_value_is_left_out(home: Path) -> None:
    output = call("show", RUN, "--home", str(home)).output
    assert "Length" not in output and "deleted" not in output and "Sentence 10." not in output


def test_a_run_of_which_nothing_is_known(home: Path) -> None:
    output = call("show", "other", "--home", str(home)).output
    assert "other-1" in output and "Curves" not in output and "Attempts" not in output


def test_a_run_as_json(home: Path) -> None:
    found = json.loads(call("show", "arith", "--home", str(home), "--json").output)
    assert found["run"]["run_id"] == RUN and len(found["curves"]["dapo/reward/generated"]) == 40


MISTAKES = {
    "a slip": (["show", "arit"], r"There is no run 'arit'; did you mean arith( or other)?\?"),
    "nothing like it": (["show", "zzz"], rf"There is no run 'zzz'; the newest are {RUN}, other-1\."),
    "no home": (["runs", "--home", "/nowhere"], r"There are no runs in /nowhere: start one with `dapo run job.yaml`"),
    "no database": (["runs", "--metadata", "sqlite:////no/db"], "There is no metadata database at /no/db"),
}


@pytest.mark.parametrize(("arguments", "sentence"), MISTAKES.values(), ids=MISTAKES.keys())
def test_mistakes_are_sentences(arguments: list[str], sentence: str, home: Path) -> None:
    where = [] if "--home" in arguments or "--metadata" in arguments else ["--home", str(home)]
    result = call(*arguments, *where)
    assert isinstance(result.exception, DapoError)
    with pytest.raises(DapoError, match=sentence):
        raise result.exception


def test_no_runs_yet(tmp_path: Path) -> None:
    upgrade(f"sqlite:///{tmp_path / 'dapo.db'}")
    assert "no runs yet" in call("runs", "--home", str(tmp_path)).output
    assert "there are no runs yet" in str(call("show", "x", "--home", str(tmp_path)).exception)
