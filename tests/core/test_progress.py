"""How far a run is and how long it still takes: the rule."""

import pytest

from dapo_core.db import CurvePoint, RunProgress
from dapo_core.run.metrics import CHECKPOINT_SECONDS, ENTROPY, REWARD_GENERATED, STEP_SECONDS, VALIDATION_SECONDS
from dapo_core.run.progress import Cadence, Curves, Pace, pace_of, progress_of, seconds_left

POINT = CurvePoint(step=9, attempt=1, ts=0.0, value=0.123456, flag=None)


def steps(first: int, last: int, seconds: float = 60.0) -> dict[int, float]:
    return {step: seconds for step in range(first, last + 1)}


@pytest.mark.parametrize(
    ("curves", "step", "step_from", "pace"),
    [
        pytest.param({}, 5, 0, None, id="no times"),
        pytest.param({STEP_SECONDS: steps(1, 9)}, 9, 9, None, id="only of an earlier attempt"),
        pytest.param({STEP_SECONDS: steps(1, 9) | {10: 5.0}}, 10, 9, Pace(5.0), id="the attempt's first step"),
        pytest.param({STEP_SECONDS: steps(1, 20, 99.0) | steps(21, 40)}, 40, 0, Pace(60.0), id="the last twenty"),
        pytest.param({STEP_SECONDS: steps(1, 3) | {4: 9000.0}}, 4, 0, Pace(60.0), id="one slow step says nothing"),
        pytest.param({STEP_SECONDS: steps(1, 9)}, 5, 0, Pace(60.0), id="steps that are done again do not count"),
        pytest.param(
            {STEP_SECONDS: steps(1, 9) | {5: 90.0, 10: 91.0}, CHECKPOINT_SECONDS: {5: 30.0, 10: 31.0}},
            10, 0, Pace(60.0, 0.0, 30.5), id="a checkpoint is not part of its step's time",
        ),
        pytest.param(
            {STEP_SECONDS: steps(1, 40), VALIDATION_SECONDS: {0: 1.0, 10: 70.0, 20: 50.0, 30: 40.0, 40: 999.0}},
            39, 30, Pace(60.0, 45.0), id="validations of the last twenty steps, of whichever attempt",
        ),
    ],
)  # fmt: skip
def test_pace(curves: Curves, step: int, step_from: int, pace: Pace | None) -> None:
    assert pace_of(curves, step, step_from) == pace


PACE = Pace(step=60.0, validation=100.0, checkpoint=10.0)


@pytest.mark.parametrize(
    ("pace", "step", "total", "cadence", "left"),
    [
        pytest.param(None, 5, 10, Cadence(), None, id="no pace"),
        pytest.param(PACE, None, 10, Cadence(), None, id="no step"),
        pytest.param(PACE, 5, None, Cadence(), None, id="no end"),
        pytest.param(PACE, 5, 10, Cadence(), 300, id="steps alone"),
        pytest.param(PACE, 10, 10, Cadence(5, 5), 0, id="complete"),
        pytest.param(PACE, 11, 10, Cadence(5, 5), 0, id="beyond the end"),
        pytest.param(PACE, 5, 20, Cadence(5, 0), 15 * 60 + 300, id="validations at 10, 15 and 20"),
        pytest.param(PACE, 4, 12, Cadence(0, 5), 8 * 60 + 30, id="checkpoints at 5, 10 and the last step"),
        pytest.param(PACE, 0, 3, Cadence(10, 10), 3 * 60 + 110, id="a run shorter than its cadence ends with both"),
    ],
)
def test_seconds_left(pace: Pace | None, step: int | None, total: int | None, cadence: Cadence, left: int) -> None:
    assert seconds_left(pace, step, total, cadence) == left


def test_progress_of_rows() -> None:
    history = {STEP_SECONDS: [(step, 60.0, None) for step in range(5, 10)]}
    run = RunProgress("r", 1, 9, 0.0, {ENTROPY: POINT, REWARD_GENERATED: POINT}, None, history)
    progress = progress_of(run, 100)
    assert (progress.step, progress.total_steps, progress.entropy) == (9, 100, 0.1235)
    assert (progress.seconds_per_step, progress.eta_seconds, progress.eta) == (60.0, 5460, "1h31m")


def test_the_record_knows_what_the_caller_does_not() -> None:
    history = {STEP_SECONDS: [(9, 60.0, None)], VALIDATION_SECONDS: [(5, 30.0, None)]}
    run = RunProgress("r", 1, 9, 0.0, {}, None, history, 0, total_steps=20, validate_every=5)
    assert progress_of(run).eta_seconds == 11 * 60 + 3 * 30
    assert progress_of(run, 10, Cadence()).eta_seconds == 60


@pytest.mark.parametrize(
    ("step_from", "step"), [(None, 9), (5, 5), (0, 0)], ids=["not yet resumed", "resumed", "from the start"]
)
def test_an_attempt_without_a_step_is_where_it_starts_and_has_no_time_left(step_from: int | None, step: int) -> None:
    history = {STEP_SECONDS: [(9, 60.0, None)]}
    progress = progress_of(RunProgress("r", 2, None, None, {ENTROPY: POINT}, None, history, step_from), 100)
    assert (progress.step, progress.eta_seconds, progress.eta) == (step, None, None)
