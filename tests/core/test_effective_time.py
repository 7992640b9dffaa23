"""What of a run's time became steps, and what took the rest, on attempts whose times are round."""

import math

import pytest

from dapo_core.run.effective_time import BETWEEN_STEPS, NO_ROLLOUTS, OTHER, STARTING, EffectiveTime, effective_time
from dapo_core.run.store_rows import AttemptRow, CurvePoint

START = 1_800_000_000.0


def attempt(number: int, begin: float, end: float | None, reason: str | None = None) -> AttemptRow:
    return AttemptRow("run", number, START + begin, None if end is None else START + end, reason=reason)


def steps(number: int, *ends: float, first: int = 1, seconds: float = 100.0) -> list[CurvePoint]:
    """Steps of an attempt that ended at these times and took so long."""
    return [CurvePoint(first + place, number, START + at, seconds, None) for place, at in enumerate(ends)]


@pytest.mark.parametrize(
    ("attempts", "curve", "held", "useful", "lost"),
    [
        pytest.param([], [], 0, 0, {}, id="nothing yet"),
        pytest.param([attempt(1, 0, None)], [], 1000, 0, {}, id="starting"),
        pytest.param([attempt(1, 0, 600, "StartTimeout")], [], 600, 0, {"StartTimeout": 600}, id="never started"),
        pytest.param([attempt(1, 0, None)], steps(1, 300, 400), 1000, 200, {STARTING: 200}, id="running"),
        pytest.param(
            [attempt(1, 0, 500, "Completed")],
            steps(1, 300, 450),
            500,
            200,
            {STARTING: 200, BETWEEN_STEPS: 50, "Completed": 50},
            id="a validation between steps",
        ),
        pytest.param(
            # Steps 3 and 4 of the first attempt were not saved: the second one repeats them.
            [attempt(1, 0, 700, "OOMKilled"), attempt(2, 720, None)],
            [*steps(1, 300, 400), *steps(2, 920, 1020, first=3)],
            1020 - 20,
            400,
            {STARTING: 200, "OOMKilled": 300 + 100},
            id="steps that were lost, and the start after them",
        ),
        pytest.param(
            [attempt(1, 0, 400, "NodeLost"), attempt(2, 400, 500, "NodeLost"), attempt(3, 500, None)],
            [*steps(1, 300), *steps(3, 700, first=2)],
            1020,
            200,
            {"NodeLost": 100 + 100 + 100, STARTING: 200},
            id="an attempt without a step",
        ),
    ],
)
def test_where_the_time_went(
    attempts: list[AttemptRow], curve: list[CurvePoint], held: float, useful: float, lost: dict[str, float]
) -> None:
    now = START + (1000 if len(attempts) < 2 else 1020)
    time = effective_time(attempts, curve, now)
    assert (time.held, time.useful, dict(time.lost)) == (held, useful, lost)
    assert time.useful + sum(time.lost.values()) <= time.held
    assert time.ratio is None or 0 <= time.ratio <= 1


def test_a_status_has_whole_seconds_and_the_largest_causes() -> None:
    lost = {f"Cause{number}": 100.4 - number for number in range(10)} | {"x" * 500: 99.5}
    spent = EffectiveTime(2000.6, 1000.2, dict(sorted(lost.items(), key=lambda each: -each[1]))).spent
    assert (spent.held_seconds, spent.useful_seconds, spent.ettr) == (2001, 1000, 0.486)
    assert len(spent.lost_seconds) == 9 and max(map(len, spent.lost_seconds)) == 64
    assert spent.lost_seconds["Cause0"] == 100 and spent.lost_seconds[OTHER] == round(93.4 + 92.4 + 91.4)


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), 1e300, -5.0])
def test_times_that_cannot_be_spoil_no_status(wrong: float) -> None:
    spent = EffectiveTime(wrong, wrong, {"NodeLost": wrong}).spent
    seconds = [spent.held_seconds, spent.useful_seconds, *spent.lost_seconds.values()]
    assert all(0 <= value <= 100 * 365 * 86_400 for value in seconds)
    assert spent.ettr is None or math.isfinite(spent.ettr)


@pytest.mark.parametrize(
    ("value", "at"),
    [(None, 400), (1e9, 400), (10, 900)],
    ids=["not a number", "longer than the attempt", "after its end"],
)
def test_a_step_time_that_cannot_be_is_no_time_of_the_run(value: float | None, at: float) -> None:
    time = effective_time([attempt(1, 0, 500, "Completed")], [CurvePoint(1, 1, START + at, value, None)], START + 500)
    assert time.useful + sum(time.lost.values()) == time.held == 500


@pytest.mark.parametrize(
    ("waited", "useful", "lost"),
    [
        pytest.param({2: 150.0}, 250, 150, id="one step waited"),
        pytest.param({1: 5.0, 2: 20.0}, 375, 25, id="both did"),
        pytest.param({2: 1e9}, 100, 300, id="longer than the step"),
        pytest.param({3: 50.0}, 400, 0, id="a step that is not on record"),
        pytest.param({1: -10.0}, 400, 0, id="not a time"),
    ],
)
def test_waiting_without_an_engine_is_lost(waited: dict[int, float], useful: float, lost: float) -> None:
    curve = [*steps(1, 200), *steps(1, 500, first=2, seconds=300.0)]
    waits = [CurvePoint(step, 1, START + 500, seconds, None) for step, seconds in waited.items()]
    time = effective_time([attempt(1, 0, 500, "Completed")], curve, START + 500, waits)
    assert (time.useful, time.lost.get(NO_ROLLOUTS, 0)) == (useful, lost)
    assert time.useful + sum(time.lost.values()) == 500
