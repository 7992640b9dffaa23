"""Bands over seeds, and what came out of a run."""

import pytest

from dapo_core.db import Bucket
from dapo_core.run import metrics
from dapo_core.run.metrics import Validation
from dapo_core.run.validations import ValidationResult
from dapo_dashboard.reads.comparison import Spread, band, final, outcomes


def curve(*values: float | None) -> list[Bucket]:
    return [Bucket(step, step, value, value, value, value, 1, None) for step, value in enumerate(values, 1)]


def test_a_band_is_from_the_least_seed_to_the_most_about_their_mean() -> None:
    joined = band([curve(1.0, 2.0), curve(3.0, 4.0)])
    assert [(each.min, each.mean, each.max, each.count) for each in joined] == [(1.0, 2.0, 3.0, 2), (2.0, 3.0, 4.0, 2)]


@pytest.mark.parametrize(
    ("spread", "low", "high"),
    [
        pytest.param("range", 1.0, 3.0, id="from the minimum to the maximum"),
        pytest.param("standard deviation", 1.0, 3.0, id="standard deviation"),
        pytest.param("standard error", 2 - 3**-0.5, 2 + 3**-0.5, id="standard error"),
    ],
)
def test_bands_about_the_mean_of_three_runs(spread: Spread, low: float, high: float) -> None:
    both, alone = band([curve(1.0, 5.0), curve(2.0), curve(3.0)], spread)
    assert [both.min, both.max] == pytest.approx([low, high]) and both.count == 3
    assert (alone.min, alone.mean, alone.max, alone.count) == (5.0, 5.0, 5.0, 1)


def points(*at: tuple[int, float | None]) -> list[Bucket]:
    return [
        Bucket(step, step, value, value, value, value, 1, None if value is not None else "nan") for step, value in at
    ]


@pytest.mark.parametrize(
    ("curves", "joined"),
    [
        pytest.param([], [], id="none"),
        pytest.param(
            [curve(1.0, 2.0, 3.0), curve(3.0)], [(1, 2.0, 2), (2, 2.0, 1), (3, 3.0, 1)], id="a seed that ended early"
        ),
        pytest.param(
            [points((5, 1.0), (10, 2.0), (15, 3.0)), points((5, 3.0), (15, 5.0))],
            [(5, 2.0, 2), (10, 3.0, 2), (15, 4.0, 2)],
            id="validated at other steps",
        ),
        pytest.param(
            [curve(1.0, 2.0, 3.0), points((1, 3.0), (3, 5.0))],
            [(1, 2.0, 2), (2, 3.0, 2), (3, 4.0, 2)],
            id="a step missing",
        ),
        pytest.param(
            [curve(1.0, 2.0), points((1, None), (2, 4.0))], [(1, 1.0, 1), (2, 3.0, 2)], id="not finite at the start"
        ),
    ],
)
def test_b24_a_band_is_over_the_runs_that_are_there(
    curves: list[list[Bucket]], joined: list[tuple[int, float, int]]
) -> None:
    assert [(each.step_to, each.mean, each.count) for each in band(curves)] == joined


def test_a_step_that_was_not_finite_is_marked_in_the_band() -> None:
    assert [each.flag for each in band([points((1, None), (2, 4.0)), curve(1.0, 2.0)])] == ["nan", None]


@pytest.mark.parametrize(
    ("values", "mean"),
    [
        pytest.param((9.0, *[1.0, 3.0] * 5), 2.0, id="the last ten steps"),
        pytest.param((1.0, 2.0), 1.5, id="fewer steps"),
        pytest.param((1.0, None), 1.0, id="not finite at the end"),
        pytest.param((None,), None, id="never finite"),
    ],
)
def test_how_a_curve_ended(values: tuple[float | None, ...], mean: float | None) -> None:
    assert final(curve(*values)) == mean


def test_runs_are_compared_by_validations_and_by_how_they_ended() -> None:
    aime = ValidationResult(Validation("aime", "mean", 8), 0.3, 20, 0.4, 10)
    series = {("a", metrics.STEP_SECONDS): curve(5.0), ("b", metrics.STEP_SECONDS): curve(7.0)}
    found = outcomes(["a", "b"], {"a": [aime]}, series, [metrics.STEP_SECONDS])
    assert [(one.title, one.unit, one.values) for one in found] == [
        ("aime mean@8, best", "%", {"a": 40.0}),
        ("aime mean@8, best at step", "", {"a": 10}),
        ("aime mean@8, last", "%", {"a": 30.0}),
        (f"{metrics.title_of(metrics.STEP_SECONDS)}, last 10 steps", "", {"a": 5.0, "b": 7.0}),
    ]
