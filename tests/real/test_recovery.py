"""One run, killed where it hurts, again and again: it goes on from its checkpoints and its curves have no hole."""

import json
from collections.abc import Callable

import pytest
from real_run import DapoRun, kill

from dapo_trainer.spool_files import SpoolReader

pytestmark = pytest.mark.timeout(900)

# Steps take half a second: enough of them that none of the attempts ends before it is killed, on a busy machine too.
STEPS = 40


def test_a_run_survives_the_death_of_driver_engine_and_worker(dapo: Callable[..., DapoRun]) -> None:
    run = dapo(schedule__steps=STEPS)

    run.wait_for_step(3, attempt=1)
    kill(run.trainer())
    run.wait_for_step(6, attempt=2)
    kill(run.below("EngineCore")[0])
    run.wait_for_step(9, attempt=3)
    kill(run.below("ray::WorkerDict")[0])
    assert run.end(400) == 0, run.tail()

    _curves_are_whole(run, STEPS)
    _attempts_go_on_from_checkpoints(run)
    _every_point_of_the_spools_is_stored_once(run)


def _curves_are_whole(run: DapoRun, steps: int) -> None:
    for metric in ("actor/entropy", "dapo/mean_probability", "response_length/mean", "dapo/accuracy/generated"):
        assert sorted({step for step, _ in run.steps(metric)} - {0}) == list(range(1, steps + 1)), metric


def _attempts_go_on_from_checkpoints(run: DapoRun) -> None:
    attempts = run.query("select attempt, step_from, step_to, exit_code, counted from attempts order by attempt")
    assert [number for number, *_ in attempts] == [1, 2, 3, 4]
    starts = [step_from for _, step_from, *_ in attempts]
    assert starts == sorted(starts) and starts[0] == 0 and all(step % 2 == 0 for step in starts)
    assert starts[1] >= 2, "the first restart began from the start although step 2 was committed"
    for number, step_from, step_to, *_ in attempts:
        mine = [step for step, attempt in run.steps() if attempt == number]
        assert mine == list(range(step_from + 1, step_to + 1))
    assert [exit_code for *_, exit_code, _ in attempts] == [137, 30, 30, 0]


def _every_point_of_the_spools_is_stored_once(run: DapoRun) -> None:
    stored = set(run.query("select name, step, attempt, value, flag from points join metric_names using (metric_id)"))
    spooled = [
        (name, record.step, record.attempt, value, record.body.get("flags", {}).get(name))
        for spool in sorted(run.folder.glob("attempt-*/spool"))
        for record in SpoolReader(spool, 0).read(1_000_000)
        if record.kind == "step"
        for name, value in record.body["values"].items()
    ]
    assert len(spooled) == len(set(spooled)), "a point is in the spools twice"
    assert stored == set(spooled), json.dumps(sorted(map(str, stored ^ set(spooled)))[:10])
