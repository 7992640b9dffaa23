"""What of a run's time became steps, and what took the rest, on attempts whose times are round."""

import pytest

from dapo_core.run.effective_time import BETWEEN_STEPS, STARTING, effective_time
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


@pytest.mark.parametrize(
    ("value", "at"),
    [(None, 400), (1e9, 400), (10, 900)],
    ids=["not a number", "longer than the attempt", "after its end"],
)
def test_a_step_time_that_cannot_be_is_no_time_of_the_run(value: float | None, at: float) -> None:
    time = effective_time([attempt(1, 0, 500, "Completed")], [CurvePoint(1, 1, START + at, value, None)], START + 500)
    assert time.useful + sum(time.lost.values()) == time.held == 500
