"""Buckets, increments and smoothing between the store and the charts."""

import math

import pytest

from dapo_core.db import Bucket, CurvePoint
from dapo_dashboard.charts import buckets
from dapo_dashboard.charts.view import StepClock
from dapo_dashboard.reads.curve_feed import clock_of


def bucket(step: int, value: float | None, *, start: int | None = None, flag: str | None = None) -> Bucket:
    return Bucket(start if start is not None else step, step, value, value, value, value, 1, flag)  # type: ignore[arg-type]


def point(step: int, value: float | None, flag: str | None = None) -> CurvePoint:
    return CurvePoint(step, 1, 0.0, value, flag)  # type: ignore[arg-type]


def test_new_steps_are_appended_and_those_there_already_replaced() -> None:
    grown = buckets.appended([bucket(1, 1.0), bucket(2, 2.0)], [point(2, 5.0), point(3, 6.0)])
    assert [(each.step_to, each.mean) for each in grown] == [(1, 1.0), (2, 5.0), (3, 6.0)]
    assert buckets.appended([bucket(1, 1.0)], []) == [bucket(1, 1.0)]


@pytest.mark.parametrize(
    ("values", "weight", "expected"),
    [
        pytest.param([1.0, 3.0], 0.0, [1.0, 3.0], id="no weight changes nothing"),
        pytest.param([4.0, 4.0, 4.0], 0.9, [4.0, 4.0, 4.0], id="a constant stays, from its first step on"),
        pytest.param([0.0, 1.0], 0.5, [0.0, 2 / 3], id="the start is not pulled to zero"),
        pytest.param([1.0, None, 1.0], 0.5, [1.0, None, 1.0], id="a gap stays a gap"),
    ],
)
def test_smoothing(values: list[float | None], weight: float, expected: list[float | None]) -> None:
    smooth = buckets.smoothed(values, weight)
    assert [None if v is None else pytest.approx(v) for v in expected] == smooth


def test_the_interval_is_about_the_mean_and_only_where_there_is_an_error() -> None:
    found = buckets.with_error([bucket(0, 0.5), bucket(10, 0.6)], [bucket(10, 0.05)])
    assert (found[0].min, found[0].max) == (0.5, 0.5)
    assert found[1].min == pytest.approx(0.502) and found[1].max == pytest.approx(0.698)


@pytest.mark.parametrize(
    ("flags", "ranges"),
    [
        pytest.param({}, [], id="all finite"),
        pytest.param({3: "nan"}, [(3, 3)], id="one step"),
        pytest.param({3: "nan", 4: "inf", 7: "nan"}, [(3, 4), (7, 7)], id="neighbours are one range"),
    ],
)
def test_ranges_that_are_not_finite(flags: dict[int, str], ranges: list[tuple[int, int]]) -> None:
    curve = [bucket(step, None if step in flags else 1.0, flag=flags.get(step)) for step in range(10)]
    assert buckets.flagged_ranges([curve, curve]) == ranges


def test_stacked_curves_stand_on_common_steps() -> None:
    every, tenth = [bucket(step, 1.0) for step in range(1, 21)], [bucket(10, 5.0), bucket(20, 5.0)]
    first, second = buckets.aligned([every, tenth])
    assert [each.step_to for each in first] == [each.step_to for each in second]
    assert [each.mean for each in second if each.mean] == [5.0, 5.0]


CLOCK = StepClock([0, 10, 20], [100.0, 200.0, 400.0], [0.0, 1e6, 3e6])


@pytest.mark.parametrize(
    ("axis", "step", "place"),
    [
        pytest.param("step", 7, 7, id="a step is itself"),
        pytest.param("time", 15, 300_000.0, id="time in milliseconds, between two steps"),
        pytest.param("tokens", 5, 5e5, id="tokens"),
        pytest.param("time", 99, 400_000.0, id="not past the last step"),
    ],
)
def test_places_on_an_axis_and_back(axis: str, step: float, place: float) -> None:
    assert CLOCK.place(step, axis) == place  # type: ignore[arg-type]
    back = CLOCK.step_at(place, axis)  # type: ignore[arg-type]
    assert back == min(step, 20) if axis != "step" else back == step


def test_a_clock_never_runs_back_and_counts_the_tokens_of_each_step() -> None:
    clock = clock_of([(1, 10.0), (2, 30.0), (3, 20.0)], [bucket(1, 100.0), bucket(3, 50.0)])
    assert list(clock.times) == [10.0, 30.0, 30.0]
    assert list(clock.tokens) == [100.0, 100.0, 150.0]
    assert StepClock().place(1, "time") is None
    assert not math.isnan(clock.place(2, "tokens") or math.nan)
