"""What the browser is sent to draw the charts of a page."""

import json
from typing import Any

import pytest

from dapo_core.db import AttemptRow, Bucket, CheckpointRow
from dapo_dashboard.charts import marks, palette, panels
from dapo_dashboard.charts.curve_chart import CurveChart, PlotLine, extent, spoken
from dapo_dashboard.charts.grid_data import grid_data
from dapo_dashboard.charts.marks import Mark
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


def sent(
    *lines: PlotLine, view: ChartView | None = None, clock: StepClock | None = None, **more: Any
) -> dict[str, Any]:
    """The page's data, with that of its one chart beside it."""
    data = grid_data([chart(*lines, **more)], view or ChartView(), clock or StepClock(), ())
    json.dumps(data, allow_nan=False)
    only: dict[str, Any] = data["charts"][0]
    return only | data


def test_a_curve_is_its_values_at_all_steps_of_the_page() -> None:
    data = sent(PlotLine("a", curve(1.0, 2.0)))
    (line,) = data["lines"]
    assert (data["steps"], line["at"], line["y"], line["dots"]) == ([1, 2], -1, [1.0, 2.0], True)
    assert "low" not in line and "smooth" not in line and "x" not in data


def test_steps_are_sent_once_and_curves_at_the_same_steps_share_their_positions() -> None:
    tenth = [bucket for bucket in curve(*range(31)) if bucket.step_to % 10 == 0]
    data = sent(PlotLine("a", curve(*range(31))), PlotLine("v", tenth), PlotLine("w", tenth))
    assert [line["at"] for line in data["lines"]] == [-1, 0, 0]
    assert data["at"] == [[9, 19, 29]] and data["lines"][1]["y"] == [9, 19, 29]


def test_a_bucket_of_several_steps_shows_its_extremes() -> None:
    (line,) = sent(PlotLine("a", curve(1.0, 2.0, None, 4.0, width=10)))["lines"]
    assert (line["low"], line["high"]) == ([0.5, 1.5, None, 3.5], [1.5, 2.5, None, 4.5])


def test_smoothing_keeps_the_raw_curve() -> None:
    (line,) = sent(PlotLine("a", curve(0.0, 1.0, 0.0, 1.0)), view=ChartView(smoothing=0.5))["lines"]
    assert line["y"] == [0.0, 1.0, 0.0, 1.0] and line["smooth"][1] == pytest.approx(2 / 3, abs=1e-5)


@pytest.mark.parametrize(
    "line",
    [
        pytest.param(
            PlotLine("a", [bucket for bucket in curve(*range(31)) if bucket.step_to % 10 == 0]), id="every tenth step"
        ),
        pytest.param(PlotLine("a", curve(1.0, 2.0), stack=True), id="stacked"),
    ],
)
def test_what_is_not_smoothed(line: PlotLine) -> None:
    assert "smooth" not in sent(line, view=ChartView(smoothing=0.9))["lines"][0]


def test_a_hole_in_the_steps_breaks_the_line() -> None:
    holed = [bucket for bucket in curve(*range(20)) if not 6 <= bucket.step_to <= 12]
    data = sent(PlotLine("a", holed))
    assert data["lines"][0]["y"][data["steps"].index(6)] is None


def test_values_that_are_not_finite_are_a_gap_and_a_red_range() -> None:
    data = sent(PlotLine("a", curve(1.0, None, None, 4.0)))
    assert data["lines"][0]["y"] == [1.0, None, None, 4.0] and data["broken"] == [[1.5, 3.5]]


def test_overwritten_points_stand_at_their_own_steps_in_the_unit_of_their_axis() -> None:
    plots = [panel for panel in panels.ALL if panel.key in ("accuracy", "speed")]
    new = {"dapo/accuracy/generated": curve(0.5, 0.6, width=4), "timing_s/gen": curve(4.0, 5.0, width=4)}
    old = {"dapo/accuracy/generated": curve(0.1, None, start=2), "timing_s/gen": curve(1.0), "gone": curve(1.0)}
    accuracy, speed = panels.with_overwritten(panels.build(plots, new), old)
    data = grid_data([accuracy, speed], ChartView(log=True), StepClock(), ())
    assert data["steps"] == [2, 3, 4, 8]
    (line,) = data["charts"][0]["lines"]
    assert (data["at"][line["oldAt"]], line["old"]) == ([0, 1], [10.0, None])
    assert (data["at"][line["at"]], line["y"]) == ([2, 3], [50.0, 60.0])
    assert "old" not in data["charts"][1]["lines"][0], "a part of a sum has no place of its own"
    assert "old" not in grid_data(panels.build(plots, new), ChartView(), StepClock(), ())["charts"][0]["lines"][0]


def test_marks_stand_at_their_places_none_outside_of_what_is_shown() -> None:
    happened = [Mark("restart", 2, "attempt 2"), Mark("checkpoint", 3, ""), Mark("suspend", 99, "")]
    data = grid_data([chart(PlotLine("a", curve(1.0, 2.0, 3.0)))], ChartView(window=(1, 3)), StepClock(), happened)
    assert data["marks"] == [["restart", 2, "attempt 2"], ["checkpoint", 3, ""]] and data["zoomed"]


@pytest.mark.parametrize(
    ("axis", "places", "unit"),
    [
        pytest.param("step", None, "", id="steps"),
        pytest.param("time", [1000.0, 2000.0], "", id="wall time in seconds"),
        pytest.param("tokens", [2.0, 4.0], "M tokens", id="tokens, in the unit that fits"),
    ],
)
def test_axes(axis: Any, places: list[float] | None, unit: str) -> None:
    clock = StepClock([1, 2], [1000.0, 2000.0], [2e6, 4e6])
    data = sent(PlotLine("a", curve(1.0, 2.0)), view=ChartView(axis=axis), clock=clock)
    assert (data.get("x"), data["unit"], data["steps"]) == (places, unit, [1, 2])
    assert data["range"] == [places[0], places[1]] if places else [1, 2]


def test_without_a_clock_there_are_no_places_in_time() -> None:
    data = sent(PlotLine("a", curve(1.0, 2.0)), view=ChartView(axis="time"))
    assert data["steps"] == [] and data["lines"][0]["y"] == [] and data["range"] == [None, None]


def test_a_log_scale_leaves_out_what_it_cannot_show() -> None:
    data = sent(PlotLine("a", curve(0.0, -1.0, 10.0)), view=ChartView(log=True))
    assert data["lines"][0]["y"] == [None, None, 10.0] and data["log"]


def test_shares_that_are_stacked_fill_the_chart() -> None:
    data = sent(PlotLine("a", curve(40.0), stack=True), unit="%", view=ChartView(log=True))
    assert (data["full"], data["zero"], data["log"]) == (True, True, False)


def test_all_charts_of_a_page_show_the_same_steps() -> None:
    two = [chart(PlotLine("a", curve(1.0, 2.0))), chart(PlotLine("b", curve(1.0, 2.0, 3.0, start=5)))]
    assert extent(two, ChartView()) == (1, 7)
    assert extent(two, ChartView(window=(2, 3))) == (2, 3)
    assert extent([], ChartView()) is None


def test_a_screen_reader_is_told_where_the_curves_are() -> None:
    assert spoken(chart(PlotLine("a →", curve(1.0, 2.5)))) == "Title up to step 2: a from 1 to 2.5"


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
