"""Curves of several runs over tokens or training time."""

from typing import Any

import pytest

from dapo_core.db import Bucket
from dapo_dashboard.charts.common_axis import placed, running_clock, steps_between
from dapo_dashboard.charts.curve_chart import CurveChart, PlotLine
from dapo_dashboard.charts.grid_data import grid_data
from dapo_dashboard.charts.view import Axis, ChartView, StepClock
from dapo_dashboard.reads.comparison import band


def bucket(step_from: int, value: float | None, step_to: int | None = None) -> Bucket:
    end = step_from if step_to is None else step_to
    return Bucket(step_from, end, value, value, value, value, end - step_from + 1, None if value is not None else "nan")


def each_step(*values: float | None, start: int = 1) -> list[Bucket]:
    return [bucket(start + at, value) for at, value in enumerate(values)]


def places(curve: list[Bucket]) -> list[int]:
    return [cell.step_to for cell in curve]


@pytest.mark.parametrize(
    ("axis", "took", "steps", "expected"),
    [
        pytest.param("tokens", each_step(100, 300, 200), [1, 2, 3], [100, 400, 600], id="tokens are added up"),
        pytest.param("time", each_step(1.5, 0.25), [1, 2], [1500, 1750], id="milliseconds"),
        pytest.param("tokens", [bucket(1, 100, 10), bucket(11, 50, 20)], [10, 20], [1000, 1500], id="buckets"),
        pytest.param("tokens", [bucket(1, 100, 10)], [5, 10], [500, 1000], id="within a bucket in proportion"),
        pytest.param("tokens", each_step(100, 100), [0, 1, 2], [0, 100, 200], id="a validation before the first step"),
        pytest.param("tokens", each_step(5, 5, start=51), [51, 52], [5, 10], id="a run that begins at a later step"),
        pytest.param("tokens", each_step(100, None, 100), [1, 3], [100, 200], id="a value that is not finite"),
        pytest.param("tokens", [], [1, 2], [], id="nothing recorded"),
    ],
)
def test_places(axis: Axis, took: list[Bucket], steps: list[int], expected: list[int]) -> None:
    curve = [bucket(step, 1.0) for step in steps]
    assert places(placed(curve, running_clock(took, axis), axis)) == expected


def test_of_steps_at_one_place_the_last_is_drawn() -> None:
    found = placed(each_step(0.1, 0.2, 0.3), running_clock(each_step(10, 0, 10), "tokens"), "tokens")
    assert [(cell.step_to, cell.mean) for cell in found] == [(10, 0.2), (20, 0.3)]


def drawn(curve: list[Bucket], view: ChartView) -> dict[str, Any]:
    data = grid_data([CurveChart("key", "Title", "", [PlotLine("a", curve)])], view, None, ())
    line: dict[str, Any] = data["charts"][0]["lines"][0]
    return data | line


def test_missing_steps_break_a_curve_and_rare_ones_do_not() -> None:
    clock = running_clock(each_step(*[1_000.0] * 40), "tokens")
    view = ChartView(axis="tokens", smoothing=0.5)
    missing = drawn(placed([bucket(step, 1.0) for step in (1, 2, 3, 20, 21)], clock, "tokens"), view)
    assert missing["y"] == [1, 1, 1, None, 1, 1] and "smooth" in missing
    rare = drawn(placed([bucket(step, 1.0) for step in (10, 20, 30, 40)], clock, "tokens"), view)
    assert rare["y"] == [1, 1, 1, 1] and "smooth" not in rare
    assert (rare["x"], rare["unit"], rare["axis"]) == ([10, 20, 30, 40], "k tokens", "place")


def test_a_band_is_over_runs_at_the_same_place_not_at_the_same_step() -> None:
    quick = placed(each_step(1, 2, 3, 4), running_clock(each_step(*[100.0] * 4), "tokens"), "tokens")
    slow = placed(each_step(10, 20), running_clock(each_step(*[200.0] * 2), "tokens"), "tokens")
    found = {cell.step_to: (cell.mean, cell.count) for cell in band([quick, slow])}
    assert found == {100: (1, 1), 200: (6, 2), 300: (9, 2), 400: (12, 2)}


@pytest.mark.parametrize(
    ("window", "axis", "steps"),
    [
        pytest.param(None, "tokens", None, id="all"),
        pytest.param((3, 5), "step", (3, 5), id="steps"),
        pytest.param((200, 400), "tokens", (1, 4), id="the steps of any run"),
        pytest.param((0, 2**52), "tokens", (0, 4), id="beyond the end"),
        pytest.param((900, 950), "tokens", (2, 4), id="after the end"),
    ],
)
def test_steps_of_a_zoom(window: tuple[int, int] | None, axis: Axis, steps: tuple[int, int] | None) -> None:
    clocks = [running_clock(each_step(*took), "tokens") for took in ([100.0] * 4, [200.0] * 2)]
    assert steps_between(window, [*clocks, StepClock()], axis) == steps
    assert steps_between(window, [StepClock()], "tokens") is None
