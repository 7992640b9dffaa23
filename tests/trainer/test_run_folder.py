"""Folders, locks, settings, and what is printed of a run afterwards."""

import io
import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest
from builders import MINIMAL, job
from local_views import NOW, empty, trained
from rich.console import Console

from dapo_core.db import (
    AttemptRow,
    EventRow,
    MetadataWriter,
    Point,
    RunRow,
    SamplesRow,
    WriteBatch,
    open_reader,
    open_writer,
    upgrade,
)
from dapo_core.errors import RunBusyError, SpecError, StoreError
from dapo_core.objectstore import open_store
from dapo_core.run.entries import Sample
from dapo_core.run.home import Home
from dapo_trainer.groups.sample_log import to_parquet
from dapo_trainer.local.command import with_values
from dapo_trainer.local.record import StoreRecord
from dapo_trainer.local.run_view import model_name, with_history
from dapo_trainer.local.summary import ComparedResponses, compared_responses, summary
from dapo_trainer.local.supervisor import RunOutcome
from dapo_trainer.process.run_folder import RunFolder, find_run, hold


class TestLayout:
    def test_attempts_are_counted_as_numbers(self, tmp_path: Path) -> None:
        run = RunFolder(tmp_path)
        for name in ("attempt-2", "attempt-10", "attempt-1", "attempt-x", "store"):
            (tmp_path / name).mkdir()
        assert [folder.number for folder in run.attempts()] == [1, 2, 10]

    def test_a_run_is_found_by_id_and_by_its_jobs_name(self, tmp_path: Path) -> None:
        home = Home(tmp_path)
        for at, run_id in enumerate(["sums-20260101-0000-aaaa", "sums-20260102-0000-bbbb", "other-20260103-0000-cccc"]):
            RunFolder(home.path / run_id).write_job(job())
            os.utime(RunFolder(home.path / run_id).job_file, (at, at))
        assert find_run(home, "sums").run_id == "sums-20260102-0000-bbbb"
        assert find_run(home, "sums-20260101-0000-aaaa").run_id == "sums-20260101-0000-aaaa"
        with pytest.raises(SpecError, match=r"There is no run nothing .* newest runs: sums-20260101"):
            find_run(home, "nothing")

    def test_a_job_comes_back_as_it_was(self, tmp_path: Path) -> None:
        run = RunFolder(tmp_path / "run")
        run.write_job(job(schedule={"steps": 7}))
        assert run.read_job() == job(schedule={"steps": 7})

    @pytest.mark.parametrize("text", [None, "{", "[]"], ids=["gone", "torn", "another thing"])
    def test_a_damaged_job_is_told(self, tmp_path: Path, text: str | None) -> None:
        if text is not None:
            (tmp_path / "job.json").write_text(text)
        with pytest.raises(SpecError):
            RunFolder(tmp_path).read_job()

    @pytest.mark.parametrize(
        ("source", "name"),
        [("hf://Qwen/Qwen2.5-7B", "Qwen/Qwen2.5-7B"), ("file:///models/small%20one/", "small one"), ("s3://b/k", "k")],
        ids=["hub", "folder", "bucket"],
    )
    def test_model_name(self, source: str, name: str) -> None:
        assert model_name(source) == name


class TestLock:
    def test_the_second_is_refused_and_the_next_one_is_not(self, tmp_path: Path) -> None:
        lock = tmp_path / "run" / "lock"
        with hold(lock, "sums"):
            with (
                pytest.raises(RunBusyError, match=f"Process {os.getpid()} is working on the run sums"),
                hold(lock, "sums"),
            ):
                pass
        with hold(lock, "sums"):
            pass

    def test_a_killed_holder_leaves_no_lock(self, tmp_path: Path) -> None:
        code = (
            "import os, sys, pathlib; from dapo_trainer.process.run_folder import hold\n"
            "with hold(pathlib.Path(sys.argv[1]), 'run'): os.kill(os.getpid(), 9)"
        )
        subprocess.run([sys.executable, "-c", code, str(tmp_path / "lock")], check=False)
        with hold(tmp_path / "lock", "sums"):
            pass


class TestOverrides:
    @pytest.mark.parametrize(
        ("setting", "path", "value"),
        [
            pytest.param("schedule.steps=50", "spec schedule steps", 50, id="spec is left out"),
            pytest.param("spec.optimizer.learningRate=1e-6", "spec optimizer learningRate", 1e-6, id="exponent"),
            pytest.param("algorithm.overlong.filter=true", "spec algorithm overlong filter", True, id="truth"),
            pytest.param(
                "checkpoints.uri=file:///tmp/a=b", "spec checkpoints uri", "file:///tmp/a=b", id="equals signs"
            ),
            pytest.param("metadata.name=other", "metadata name", "other", id="outside the spec"),
            pytest.param("data.train.0.source=x.parquet", "spec data train 0 source", "x.parquet", id="list entry"),
            pytest.param("guards=[]", "spec guards", [], id="list"),
        ],
    )
    def test_set(self, setting: str, path: str, value: Any) -> None:
        tree: Any = with_values(MINIMAL, [setting])
        for key in path.split():
            tree = tree[int(key)] if key.isdecimal() else tree[key]
        assert tree == value
        assert with_values(MINIMAL, []) == MINIMAL

    @pytest.mark.parametrize(
        ("setting", "says"),
        [
            ("schedule.steps", "write a dotted field"),
            ("=3", "write a dotted field"),
            ("a..b=3", "write a dotted field"),
            ("data.train.7.source=x", "names no entry of a list of 1"),
            ("data.train.x.source=x", "names no entry"),
            ("model.source.deep=x", "is a single value"),
            ("model.source={", "is not valid YAML"),
        ],
    )
    def test_mistakes(self, setting: str, says: str) -> None:
        with pytest.raises(SpecError, match=says):
            with_values(MINIMAL, [setting])

    def test_all_mistakes_at_once(self) -> None:
        with pytest.raises(SpecError) as caught:
            with_values(MINIMAL, ["one", "two"])
        assert len(caught.value.problems) == 2


def said(*args: Any, **kwargs: Any) -> str:
    console = Console(width=80, file=io.StringIO())
    console.print(summary(*args, **kwargs))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


class TestSummary:
    def test_what_was_learned_comes_first(self) -> None:
        pair = ComparedResponses("7 + 5 =", "11", False, "7 + 5 is\n12", True)
        text = said(trained(120), RunOutcome(0, "done", "Completed", "", "Succeeded"), 610.0, [pair], {"log": "a.log"})
        lines = [line.strip() for line in text.splitlines()]
        assert "DONE  arithmetic-20261121-0412-x7k2  120 of 120 steps in 10:10, 1 restart" in lines
        assert any(line.startswith("addition mean@8") and "(step 10)" in line and "points" in line for line in lines)
        assert "before wrong 11" in lines
        assert "after  right 7 + 5 is 12" in lines
        assert any(line.startswith("generate") and "%" in line for line in lines)
        assert "dapo resume" not in text

    def test_a_failure_says_why_and_how_to_go_on(self) -> None:
        outcome = RunOutcome(139, "failed", "TooManyRestarts", "It crashed six times.", "Failed")
        text = said(empty(), outcome, 3.0, [], {}, ["Fatal Python error: Segmentation fault"])
        assert "It crashed six times." in text
        assert "| Fatal Python error: Segmentation fault" in text
        assert "dapo resume arithmetic-20261121-0412-x7k2" in text
        assert "Validation" not in text


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """A home whose store has one run with two attempts, the second from step 2."""
    place = Home(tmp_path)
    upgrade(place.metadata_url)
    writer = open_writer(place.metadata_url)
    writer.create_run(RunRow("run", "run"))
    writer.start_attempt(AttemptRow("run", 1, NOW))
    for attempt, step in ((1, 1), (1, 2), (1, 3), (2, 3)):
        writer.write("run", WriteBatch(points=[Point.of("m", step, attempt, NOW + step, step * attempt)]))
    writer.write_events("run", [EventRow("run", "k", NOW, "Warning", "Killed", "gone")])
    return place


class TestStores:
    def test_a_view_starts_with_what_was_before(self, home: Home) -> None:
        view = with_history(empty_of("run"), open_reader(home.metadata_url))
        assert view.curve("m") == [(1, 1.0), (2, 2.0), (3, 6.0)]
        assert (view.step, view.attempt, view.events[-1].reason) == (3, 2, "Killed")

    def test_a_view_of_an_earlier_step(self, home: Home) -> None:
        assert with_history(empty_of("run"), open_reader(home.metadata_url), until_step=2).step == 2

    def test_a_store_that_is_down_neither_raises_nor_loses(self, home: Home) -> None:
        writer = Flaky(home.metadata_url)
        record = StoreRecord(cast(MetadataWriter, writer), "run")
        writer.down = True
        record.attempt_started(3, NOW)
        record.state("Running", "Started", "")
        writer.down = False
        record.attempt_ended(AttemptRow("run", 3, NOW, NOW, reason="Completed", exit_code=0), None)
        reader = open_reader(home.metadata_url)
        run = reader.run("run")
        assert run is not None
        assert (run.state, reader.attempts("run")[-1].exit_code) == ("Running", 0)

    def test_responses_before_and_after(self, home: Home) -> None:
        store, writer = open_store(home.store_url), open_writer(home.metadata_url)
        for step, right in ((0, 0.0), (10, 1.0), (11, 1.0)):
            prompts = [f"{step}+1=?"] if step == 11 else [f"prompt {n}" for n in range(9)]
            data = to_parquet([Sample(p, f"at {step}", "1", right, right, 3, False) for p in prompts])
            store.put_bytes(f"{step}.parquet", data)
            samples = SamplesRow("run", step, 1, f"{step}.parquet", len(prompts), len(data), NOW)
            writer.write("run", WriteBatch(samples=[samples]))
        pairs = compared_responses(home.metadata_url, home.store_url, "run")
        assert [pair.prompt for pair in pairs] == [f"prompt {n}" for n in (0, 1, 3, 5, 7)]
        assert (pairs[0].before, pairs[0].before_right, pairs[0].after, pairs[0].after_right) == (
            "at 0",
            False,
            "at 10",
            True,
        )

    def test_no_samples_no_responses(self, home: Home) -> None:
        assert compared_responses(home.metadata_url, home.store_url, "run") == []


def empty_of(run_id: str) -> Any:
    from dataclasses import replace

    return replace(empty(), run_id=run_id)


class Flaky:
    """A writer whose store can be down."""

    def __init__(self, url: str) -> None:
        self._writer = open_writer(url)
        self.down = False

    def __getattr__(self, name: str) -> Any:
        if self.down:
            raise StoreError("down")
        return getattr(self._writer, name)


def test_the_picture_stands_alone() -> None:
    script = Path(__file__).parents[2] / "scripts" / "generate" / "live_view.py"
    svg = runpy.run_path(str(script))["live_svg"](trained(54), NOW)
    assert svg.startswith("<svg")
    assert "http" not in svg.replace("http://www.w3.org/2000/svg", "")
    assert "accuracy" in svg
