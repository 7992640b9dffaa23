"""ECharts options, as data."""

import json
from typing import Any

import pytest

from dapo_core.db import AttemptRow, Bucket, CheckpointRow, EventRow
from dapo_dashboard.charts import intervals, marks, options, palette, panels
from dapo_dashboard.charts.marks import Mark
from dapo_dashboard.charts.options import CurveChart
from dapo_dashboard.charts.series import PlotLine
from dapo_dashboard.charts.view import ChartView, StepClock, axis_of, window_of


def curve(*values: float | None, width: int = 1, start: int = 1) -> list[Bucket]:
    """A bucket a value; a wide one has extremes about its mean."""
    spread = 0.5 if width > 1 else 0.0
    return [
        Bucket(
            start + at * width,
            start + at * width + width - 1,
            None if value is None else value - spread,
            None if value is None else value + spread,
            value,
            value,
            width,
            "nan" if value is None else None,
        )
        for at, value in enumerate(values)
    ]


def chart(*lines: PlotLine, **more: Any) -> CurveChart:
    return CurveChart("key", "Title", more.pop("unit", ""), lines, **more)


def drawn(option: dict[str, Any]) -> list[dict[str, Any]]:
    """The series with points."""
    return [series for series in option["series"] if series["data"]]


def test_a_curve_is_a_line_of_its_points() -> None:
    (series,) = drawn(options.option(chart(PlotLine("a", curve(1.0, 2.0))), ChartView()))
    assert series["data"] == [[1, 1.0], [2, 2.0]] and series["name"] == "a"


def test_a_bucket_of_several_steps_shows_its_extremes() -> None:
    option = options.option(chart(PlotLine("a", curve(1.0, 2.0, width=10))), ChartView())
    mean, band = drawn(option)
    assert band["data"] == [[10, 1.5], [20, 2.5], [20, 1.5], [10, 0.5]], "there along the most, back along the least"
    assert mean["name"] == band["name"], "one color and one entry of the legend"
    assert band["tooltip"] == {"show": False} and band["areaStyle"]


def test_a_band_ends_at_a_value_that_is_not_finite_and_begins_again() -> None:
    _, band = drawn(options.option(chart(PlotLine("a", curve(1.0, 2.0, None, 4.0, 5.0, width=10))), ChartView()))
    assert [point[1] for point in band["data"]] == [1.5, 2.5, 1.5, 0.5, None, 4.5, 5.5, 4.5, 3.5]


def test_a_chart_without_marks_carries_none() -> None:
    assert [
        series["name"] for series in options.option(chart(PlotLine("a", curve(1.0, 2.0))), ChartView())["series"]
    ] == ["a"]


def test_smoothing_keeps_the_raw_curve_faint() -> None:
    option = options.option(chart(PlotLine("a", curve(0.0, 1.0, 0.0, 1.0))), ChartView(smoothing=0.5))
    smooth, raw = drawn(option)
    assert [point[1] for point in raw["data"]] == [0.0, 1.0, 0.0, 1.0]
    assert raw["lineStyle"]["opacity"] < 0.5 and smooth["data"][1][1] == pytest.approx(2 / 3)


def test_what_comes_every_tenth_step_is_joined_and_not_averaged() -> None:
    sparse = [bucket for bucket in curve(*range(31)) if bucket.step_to % 10 == 0]
    (series,) = drawn(options.option(chart(PlotLine("validation", sparse)), ChartView(smoothing=0.9)))
    assert [point[1] for point in series["data"]] == [9, 19, 29]


def test_a_hole_in_the_steps_breaks_the_line() -> None:
    holed = [bucket for bucket in curve(*range(20)) if not 6 <= bucket.step_to <= 12]
    (series,) = drawn(options.option(chart(PlotLine("a", holed)), ChartView()))
    assert [6, None] in series["data"]


def test_values_that_are_not_finite_are_a_gap_and_a_red_band() -> None:
    option = options.option(chart(PlotLine("a", curve(1.0, None, None, 4.0))), ChartView())
    assert [point[1] for point in drawn(option)[0]["data"]] == [1.0, None, None, 4.0]
    ((begin, end),) = option["series"][-1]["markArea"]["data"]
    assert (begin["xAxis"], end["xAxis"]) == (1.5, 3.5) and begin["name"] == "not finite"
    json.dumps(option, allow_nan=False)


def test_marks_stand_at_their_steps_each_with_a_sign_of_its_own() -> None:
    happened = [Mark("restart", 2, ""), Mark("checkpoint", 3, ""), Mark("alert", 3, ""), Mark("suspend", 99, "")]
    option = options.option(chart(PlotLine("a", curve(1.0, 2.0, 3.0))), ChartView(), marks=happened, steps=(1, 3))
    carrier = option["series"][-1]
    assert [line["xAxis"] for line in carrier["markLine"]["data"]] == [2, 3, 3], "none outside of what is shown"
    signs = [(sign["symbol"], sign.get("symbolRotate"), sign["y"]) for sign in carrier["markPoint"]["data"]]
    assert len(set(signs)) == 3


@pytest.mark.parametrize(
    ("view", "axis_type", "first_x"),
    [
        pytest.param(ChartView(), "value", 1, id="steps"),
        pytest.param(ChartView(axis="time"), "time", 1_000_000.0, id="wall time"),
        pytest.param(ChartView(axis="tokens"), "value", 2.0, id="tokens, in the unit that fits"),
    ],
)
def test_axes(view: ChartView, axis_type: str, first_x: float) -> None:
    clock = StepClock([1, 2], [1000.0, 2000.0], [2e6, 4e6])
    option = options.option(chart(PlotLine("a", curve(1.0, 2.0))), view, clock=clock, steps=(1, 2))
    assert option["xAxis"]["type"] == axis_type
    assert drawn(option)[0]["data"][0][0] == first_x
    if view.axis == "tokens":
        assert option["xAxis"]["axisPointer"]["label"]["formatter"] == "{value} M tokens"


def test_a_log_scale_leaves_out_what_it_cannot_show() -> None:
    option = options.option(chart(PlotLine("a", curve(0.0, -1.0, 10.0))), ChartView(log=True))
    assert option["yAxis"][0]["type"] == "log"
    assert [point[1] for point in drawn(option)[0]["data"]] == [None, None, 10.0]


def test_all_charts_of_a_page_show_the_same_steps() -> None:
    two = [chart(PlotLine("a", curve(1.0, 2.0))), chart(PlotLine("b", curve(1.0, 2.0, 3.0, start=5)))]
    assert options.extent(two, ChartView()) == (1, 7)
    assert options.extent(two, ChartView(window=(2, 3))) == (2, 3)
    assert options.extent([], ChartView()) is None


def test_the_table_of_a_chart_has_a_column_a_curve() -> None:
    table = options.columns(chart(PlotLine("a", curve(1.0, width=5)), PlotLine("b", curve(2.0, 3.0))), ChartView())
    assert list(table) == ["step", "a", "a, min", "a, max", "b"]
    assert table["step"] == [1.0, 2.0, 5.0] and table["b"] == [2.0, 3.0, None]


def test_a_screen_reader_is_told_where_the_curves_are() -> None:
    assert options.spoken(chart(PlotLine("a →", curve(1.0, 2.5)))) == "Title up to step 2: a from 1 to 2.5"


def test_the_papers_three_come_first_and_every_panel_is_built_of_what_it_wants() -> None:
    assert [panel.key for panel in panels.ALL[:3]] == ["length", "reward", "entropy"]
    names = ["actor/entropy", "val-core/math/acc/mean@8", "timing_s/gen", "timing_s/testing", "unrelated"]
    wanted = panels.wanted(panels.ALL, names)
    assert wanted == names[:-1]
    built = panels.build(panels.ALL, {name: curve(0.5, 0.25) for name in wanted})
    assert [each.key for each in built] == ["entropy", "accuracy", "speed"]
    assert built[1].lines[0].curve[0].mean == 50, "shares are shown in percent"
    assert all(line.stack for line in built[2].lines if line.curve)


def test_validation_has_its_interval_and_comes_before_training() -> None:
    data = {
        "val-core/math/acc/mean@8": curve(0.5),
        "val-aux/math/acc/mean@8/standard_error": curve(0.1),
        "val-core/math/acc/maj@8/mean": curve(0.6),
        "dapo/accuracy/generated": curve(0.4),
    }
    (built,) = panels.build([panel for panel in panels.ALL if panel.key == "accuracy"], data)
    assert [line.name for line in built.lines if line.curve] == ["mean@8", "training", "maj@8"]
    assert built.lines[0].curve[0].max == pytest.approx(69.6)


def test_any_other_metric_can_be_drawn() -> None:
    plot = panels.free_plot("rollout_corr/kl")
    assert plot.key.startswith("free-rollout-corr-kl-") and plot.wants("rollout_corr/kl")
    assert len({panels.key_of("free", name) for name in ("a/b", "a-b", "a_b", "a.b")}) == 4, "B28"
    assert plot.build({"rollout_corr/kl": curve(1.0)}).title == "rollout_corr/kl"


def test_marks_of_what_happened() -> None:
    attempts = [
        AttemptRow("r", 1, 0.0, step_from=0, step_to=9, reason="Killed"),
        AttemptRow("r", 2, 1.0, step_from=5, step_to=12, reason="SuspendedByUser"),
    ]
    assert marks.of_attempts(attempts) == [Mark("restart", 5, "attempt 2"), Mark("suspend", 12, "stopped")]
    rows = [CheckpointRow("r", 5, 1, "committed", "", 0.0), CheckpointRow("r", 9, 1, "deleted", "", 0.0)]
    assert marks.of_checkpoints(rows) == [Mark("checkpoint", 5, "")]


def test_a_timeline_names_how_each_attempt_ended() -> None:
    attempts = [AttemptRow("r", 1, 10.0, 20.0, reason="Killed"), AttemptRow("r", 2, 21.0)]
    events = [EventRow("r", "a", 15.0, "Warning", "<b>Odd</b>", ""), EventRow("r", "b", 16.0, "Normal", "Started", "")]
    option = intervals.timeline(attempts, events, 30.0)
    names = [series["name"] for series in option["series"]]
    assert names == ["attempt 1: Killed", "attempt 2: still running", "Normal", "Warning"]
    assert option["series"][1]["data"][1][0] == 30_000
    assert intervals.timeline_height(attempts) > intervals.timeline_height(attempts[:1])


def test_an_ablation_is_a_bar_a_group_with_the_spread_of_its_runs() -> None:
    option = intervals.ablation({"grpo": [30.0, 34.0], "dapo": [50.0]}, "%")
    bars, points = option["series"]
    assert option["yAxis"]["data"] == ["grpo\n32 %", "dapo\n50 %"]
    assert bars["data"] == [32.0, 50.0] and len(points["data"]) == 3
    assert bars["markLine"]["data"] == [[{"coord": [30.0, 0]}, {"coord": [34.0, 0]}]]


def test_evaluations_are_drawn_with_their_intervals_within_the_axis() -> None:
    half, alone = {"value": 0.5, "low": 0.38, "high": 0.62}, {"value": 0.7, "low": None, "high": None}
    steps = intervals.evaluations_by_step({"aime": [(40, half), (20, alone)]})
    (series,) = steps["series"]
    assert series["data"] == [[20, 70.0], [40, 50.0]]
    assert series["markLine"]["data"] == [[{"coord": [40, 38.0]}, {"coord": [40, 62.0]}]]
    assert (steps["yAxis"]["min"], steps["yAxis"]["max"]) == (30, 70)
    rows = intervals.evaluation_rows({"mean@4": half, "one prompt": alone})
    assert rows["yAxis"]["data"] == ["mean@4", "one prompt"] and len(rows["series"][0]["markLine"]["data"]) == 1
    json.dumps([steps, rows], allow_nan=False)


def test_twenty_runs_are_told_apart_by_more_than_their_color() -> None:
    assert len({palette.run_color(index) for index in range(20)}) == 20


@pytest.mark.parametrize(
    ("query", "window"),
    [
        pytest.param({"from": "5", "to": "9"}, (5, 9), id="a range"),
        pytest.param({}, None, id="none"),
        pytest.param({"from": "9", "to": "5"}, None, id="backwards"),
        pytest.param({"from": "<script>", "to": "5"}, None, id="nonsense"),
    ],
)
def test_the_window_of_a_url(query: dict[str, str], window: tuple[int, int] | None) -> None:
    assert window_of(query) == window
    assert axis_of("tokens") == "tokens" and axis_of("moon") == "step"
