"""Charts of intervals, as data: evaluations, results of runs, attempts in time."""

import json

from dapo_core.db import AttemptRow, EventRow
from dapo_dashboard.charts import intervals


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
