"""The pods of a run in time, from attempts and events as the operator and the driver write them."""

import json

import pytest

from dapo_core.db import AttemptRow, EventRow
from dapo_core.naming import Role
from dapo_core.run.effective_time import EffectiveTime
from dapo_dashboard.charts.fleet_lanes import MAX_LANES, Fleet, fleet_chart, fleet_height, fleet_of
from dapo_dashboard.pages.run_fleet import pods_of, time_figures

PODS: dict[Role, int] = {"head": 1, "trainer": 1, "rollout": 2}
ATTEMPTS = [AttemptRow("r", 1, 0.0, 100.0, reason="NodeLost"), AttemptRow("r", 2, 110.0)]
READY = "All 4 pods are ready after 10 s in attempt 1."


def event(ts: float, reason: str, message: str, attempt: int = 1) -> EventRow:
    return EventRow("r", f"{ts}{reason}", ts, "Warning" if "Lost" in reason else "Normal", reason, message, attempt)


def lane(fleet: Fleet, name: str) -> list[tuple[str, float, float]]:
    return [(span.state, span.begin, span.end) for span in fleet.spans if span.lane == name]


def of(*events: EventRow, pods: dict[Role, int] = PODS) -> Fleet:
    # The store gives the newest first.
    return fleet_of("first", pods, ATTEMPTS, events[::-1], 200.0)


def test_every_attempt_begins_with_all_pods_and_ends_with_all() -> None:
    fleet = of(event(10, "PodsReady", READY))
    assert fleet.lanes == ["head-0", "trainer-0", "rollout-0", "rollout-1"]
    for name in fleet.lanes:
        assert lane(fleet, name) == [("starting", 0, 10), ("working", 10, 100), ("starting", 110, 200)]


def test_on_one_machine_pods_work_from_when_weights_are_sent_first() -> None:
    fleet = fleet_of("first", {"trainer": 1}, ATTEMPTS, [], 200.0, [25.0, 50.0, 150.0])
    assert lane(fleet, "trainer-0") == [
        ("starting", 0, 25), ("working", 25, 100), ("starting", 110, 150), ("working", 150, 200)
    ]  # fmt: skip
    assert not fleet.marks


@pytest.mark.parametrize(
    ("events", "spans"),
    [
        pytest.param(
            [
                event(30, "RolloutReplaced", "first-rollout-1-1 disappeared. first-rollout-1-1-2 replaces it."),
                event(31, "RolloutLost", "Engine 1 on first-rollout-1-1 is lost: its node left. 1 engines serve."),
                event(55, "RolloutJoined", "Engine 2 on first-rollout-1-1-2 is loaded and receives weights."),
            ],
            [("working", 10, 30), ("starting", 30, 55), ("working", 55, 100)],
            id="killed, and replaced before the driver noticed",
        ),
        pytest.param(
            [
                event(30, "RolloutWedged", "Engine 1 is alive and generates nothing."),
                event(31, "RolloutLost", "Engine 1 on first-rollout-1-1 is lost: it generated nothing."),
                event(50, "RolloutJoined", "Engine 2 on first-rollout-1-1 is loaded and receives weights."),
            ],
            [("working", 10, 31), ("away", 31, 50), ("working", 50, 100)],
            id="a wedged engine in a pod that stays",
        ),
        pytest.param(
            [
                event(30, "RolloutDrained", "first-rollout-1-1 is being terminated; its requests go on."),
                event(40, "RolloutReplaced", "Drained. first-rollout-1-1-2 replaces it."),
                event(60, "RolloutReplaced", "OOMKilled. first-rollout-1-1-3 replaces it."),
            ],
            [("working", 10, 30), ("away", 30, 40), ("starting", 40, 100)],
            id="two lives",
        ),
        pytest.param(
            [event(30, "RolloutLost", "Engine 1 on other-first-rollout-1-1 is lost; first-rollout-1-10 too.")],
            [("working", 10, 100)],
            id="pods of similar names",
        ),
    ],
)
def test_lives_follow_one_another(events: list[EventRow], spans: list[tuple[str, float, float]]) -> None:
    fleet = of(event(10, "PodsReady", READY), *events)
    assert lane(fleet, "rollout-1")[1:-1] == spans
    assert lane(fleet, "rollout-0")[:-1] == [("starting", 0, 10), ("working", 10, 100)]


def test_a_rollout_that_was_added_has_a_lane_from_then_on() -> None:
    fleet = of(event(40, "RolloutJoined", "Engine 3 on first-rollout-1-2 is loaded and receives weights."))
    assert fleet.lanes[-1] == "rollout-2"
    assert lane(fleet, "rollout-2") == [("working", 40, 100)]


def test_a_large_fleet_is_cut_and_the_chart_is_data() -> None:
    joined = event(40, "RolloutJoined", "Engine 3 on first-rollout-1-2 is loaded and receives weights.")
    lost = event(50, "RolloutLost", "Engine 3 on first-rollout-1-2 is lost: it ended.")
    fleet = of(joined, lost, pods={"head": 1, "trainer": 16, "rollout": 4000})
    assert len(fleet.lanes) == MAX_LANES and fleet.hidden > 0
    chart = fleet_chart(fleet, [20.0, 30.0])
    json.dumps(chart, allow_nan=False)
    assert [series["name"] for series in chart["series"]][:3] == ["starting", "working", "away"]
    assert chart["series"][-1]["data"] == [[20_000, "weights sent"], [30_000, "weights sent"]]
    assert chart["series"][4]["data"] == [{"name": "RolloutLost", "value": [50_000, "rollout-2"]}]
    assert fleet_height(fleet) > fleet_height(of())


@pytest.mark.parametrize(
    ("topology", "pods"),
    [
        ({"mode": "Separated", "trainer": {"replicas": 2}, "rollout": {"replicas": 3}}, (1, 2, 3)),
        ({"mode": "Colocated", "trainer": {"replicas": 2}, "rollout": {"replicas": 3}}, (1, 2, 0)),
        ({"mode": "Separated", "trainer": {"replicas": "many"}, "rollout": {"replicas": -4}}, (1, 1, 0)),
        ({}, (1, 1, 0)),
    ],
    ids=["separated", "colocated", "odd", "none"],
)
def test_the_pods_that_an_attempt_starts_with(topology: dict[str, object], pods: tuple[int, int, int]) -> None:
    assert tuple(pods_of({"spec": {"topology": topology}}).values()) == pods


def test_what_the_time_was_spent_on_is_shown_by_cause() -> None:
    lost = {f"Cause{number}": 60.0 for number in range(9)}
    figures = time_figures(EffectiveTime(3600, 3060, lost))
    assert figures["Effective time (ETTR)"] == "85.0%" and figures["With pods"] == "1h00m"
    assert len(figures) == 3 + 5 and figures["Lost: Cause0"] == "1m00s"
    assert time_figures(EffectiveTime(0, 0, {}))["Effective time (ETTR)"] == "-"
