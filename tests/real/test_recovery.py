"""One run, killed where it hurts, again and again: it goes on from its checkpoints and its curves have no hole."""

from collections.abc import Callable

import pytest
from real_run import DapoRun, assert_curves_are_whole, assert_every_point_is_stored_once, kill

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

    assert_curves_are_whole(run, STEPS)
    _attempts_go_on_from_checkpoints(run)
    assert_every_point_is_stored_once(run)


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
