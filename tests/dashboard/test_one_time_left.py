"""One recorded run: the operator, `dapo run`, `dapo show` and the pages show the same step and the same time left."""

import asyncio
import time
from collections.abc import Mapping, Sequence

import builders
import pytest
import typer
from dashboard_data import START, Store
from dashboard_script import shown, store, texts
from typer.testing import CliRunner

from dapo_core.cli import runs
from dapo_core.db import open_reader
from dapo_core.run import metrics
from dapo_core.run.formatting import duration
from dapo_dashboard.reads import run_list
from dapo_dashboard.reads.cached_reader import CachedReader
from dapo_operator.metadata_store import MetadataStore
from dapo_trainer.local.run_view import RunView, first_view, with_attempt, with_step
from dapo_trainer.local.screen import Screen, render

__all__ = ["store"]

JOB = builders.job(
    schedule={"steps": 100, "validateEvery": 10, "checkpointEvery": 15}, data={"validation": builders.VALIDATION}
)
ATTEMPTS: Mapping[int, Sequence[int]] = {1: range(1, 31), 2: range(16, 44)}
# 57 steps of 61 s, six validations of 300 s, five checkpoints (45, 60, 75, 90, 100) of 20 s.
LEFT = 57 * 61 + 6 * 300 + 5 * 20


def values(attempt: int, step: int) -> dict[str, float]:
    """Times of a step: the first attempt was slower, and a checkpoint is part of its step."""
    saved = 20.0 if step % 15 == 0 else 0.0
    found = {metrics.STEP_SECONDS: (90.0 if attempt == 1 else 61.0) + saved, metrics.REWARD_GENERATED: 0.5}
    found |= {metrics.CHECKPOINT_SECONDS: saved} if saved else {}
    return found | ({metrics.VALIDATION_SECONDS: 300.0} if step % 10 == 0 else {})


@pytest.fixture
def run(store: Store) -> str:
    """A run that was killed at step 30, resumed from step 15 and is at step 43."""
    store.run("r", spec=builders.dumped(JOB))
    for attempt, done in ATTEMPTS.items():
        if attempt > 1:
            store.attempt("r", attempt, done[0] - 1)
        for step in done:
            shapes = {name: (lambda _, value=value: value) for name, value in values(attempt, step).items()}
            store.steps("r", [step], attempt, shapes)
    return "r"


def of_the_operator(store: Store) -> tuple[int | None, str | None]:
    watching = MetadataStore(store.url, time.time)
    watching.watch("r", JOB.spec, lambda: None)
    asyncio.run(watching._read(open_reader(store.url)))
    progress = watching.view("r").progress
    assert progress is not None
    return progress.step, progress.eta


def of_the_live_view() -> RunView:
    view = first_view("r", JOB, START)
    for attempt, done in ATTEMPTS.items():
        view = with_attempt(view, attempt, attempt - 1, START)
        for step in done:
            view = with_step(view, attempt, step, START + step, values(attempt, step))
    return view


def test_all_show_the_same_time_left(store: Store, run: str) -> None:
    left = duration(LEFT)
    assert left == "1h29m"
    assert of_the_operator(store) == (43, left)
    view = of_the_live_view()
    assert f"about {left} left" in "\n".join(line.plain for line in render(view, Screen(100, 30, START)))
    assert (view.step, view.seconds_left()) == (43, LEFT)
    app = typer.Typer()
    app.command()(runs.show)
    assert f"Time left  {left}" in CliRunner().invoke(app, [run, "--metadata", store.url]).output
    reader = CachedReader(store.url)
    assert run_list.read_seconds_left(reader, run_list.read_rows(reader).value) == {"r": LEFT}
    assert f"<dt>Time left</dt><dd>{left}</dd>" in texts(shown("run", run=run))


def test_the_record_of_a_run_that_is_looked_at_again_gives_it_too(store: Store, run: str) -> None:
    with_all = open_reader(store.url).progress([run], (), (metrics.STEP_SECONDS,))[run]
    assert (with_all.step_from, with_all.total_steps) == (15, 100)
    assert (with_all.validate_every, with_all.checkpoint_every) == (10, 15)
