"""Bands over seeds, and what came out of a run."""

import pytest

from dapo_core.db import Bucket
from dapo_dashboard.reads.comparison import CurveOutcome, band, outcome


def curve(*values: float | None) -> list[Bucket]:
    return [Bucket(step, step, value, value, value, value, 1, None) for step, value in enumerate(values, 1)]


def test_a_band_is_from_the_least_seed_to_the_most_about_their_mean() -> None:
    joined = band([curve(1.0, 2.0), curve(3.0, 4.0)])
    assert [(each.min, each.mean, each.max, each.count) for each in joined] == [(1.0, 2.0, 3.0, 2), (2.0, 3.0, 4.0, 2)]


def test_a_seed_that_ended_early_does_not_bend_the_mean() -> None:
    assert [each.step_to for each in band([curve(1.0, 2.0, 3.0), curve(3.0)])] == [1]
    assert band([]) == []


@pytest.mark.parametrize(
    ("values", "found"),
    [
        pytest.param((1.0, 5.0, 3.0), CurveOutcome(3.0, 5.0, 2), id="final and best"),
        pytest.param((5.0, 5.0), CurveOutcome(5.0, 5.0, 1), id="the first of equals"),
        pytest.param((1.0, None), CurveOutcome(1.0, 1.0, 1), id="not finite at the end"),
        pytest.param((None,), None, id="never finite"),
    ],
)
def test_outcomes(values: tuple[float | None, ...], found: CurveOutcome | None) -> None:
    assert outcome(curve(*values)) == found


def test_the_lowest_can_be_the_best() -> None:
    assert outcome(curve(3.0, 1.0, 2.0), lower_is_better=True) == CurveOutcome(2.0, 1.0, 2)
