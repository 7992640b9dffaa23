"""What follows an attempt's end: one row a case."""

from typing import Any

import pytest
from builders import MINIMAL

from dapo_core.jobspec import RunPolicy, parse_job
from dapo_core.jobspec.presets import merged
from dapo_core.run.failure_policy import Decision, Failure, History, advanced, decide, failure_of, fruitless

POLICY = RunPolicy.model_validate({"maxRestarts": 3, "backoffSeconds": 10, "backoffMaxSeconds": 60})
# Failure -> (action, counted, reason)
ENDS: dict[str, tuple[Failure, tuple[str, bool, str]]] = {
    "done": (Failure(0), ("complete", False, "Completed")),
    "wrong command line": (Failure(2), ("fail", False, "Usage")),
    "invalid spec": (Failure(10), ("fail", False, "InvalidSpec")),
    "bad data": (Failure(11, "BadLabel", "Row 3."), ("fail", False, "BadLabel")),
    "model unloadable": (Failure(12), ("fail", False, "ModelUnloadable")),
    "node unfit": (Failure(15), ("restart", True, "NodeUnfit")),
    "sampling exhausted, Fail": (Failure(20), ("fail", False, "SamplingExhausted")),
    "sampling exhausted, Suspend": (Failure(20, suspends=True), ("suspend", False, "SamplingExhausted")),
    "guard, Fail": (Failure(21, "NonFinite"), ("fail", False, "NonFinite")),
    "guard, Suspend": (Failure(21, suspends=True), ("suspend", False, "Guard")),
    "distributed fault": (Failure(30), ("restart", True, "DistributedFault")),
    "stores unreachable": (Failure(31), ("restart", True, "StoresUnreachable")),
    "killed": (Failure(137), ("restart", True, "Killed")),
    "killed, as a process tells it": (Failure(-9), ("restart", True, "Killed")),
    "out of memory": (Failure(137, "OOMKilled"), ("restart", True, "OOMKilled")),
    "stalled": (Failure(137, "Stalled"), ("restart", True, "Stalled")),
    "a crash": (Failure(1), ("restart", True, "Crashed")),
    "a segmentation fault": (Failure(-11), ("restart", True, "Crashed")),
    "an unheard-of code": (Failure(77), ("restart", True, "Crashed")),
    "terminated": (Failure(143), ("restart", False, "Terminated")),
    "terminated, as a process tells it": (Failure(-15), ("restart", False, "Terminated")),
    "rejected by a node": (Failure(None, "NodeRejected"), ("restart", False, "NodeRejected")),
    "evicted": (Failure(137, "Evicted"), ("restart", False, "Evicted")),
    "preempted": (Failure(143, "Preempted"), ("restart", False, "Preempted")),
    "node lost": (Failure(None, "NodeLost"), ("restart", False, "NodeLost")),
    "pods that found no place": (Failure(None, "StartTimeout"), ("restart", False, "StartTimeout")),
    "a process that never got ready": (Failure(137, "StartTimeout"), ("restart", True, "StartTimeout")),
    "ended at the run's deadline": (Failure(143, "DeadlineExceeded"), ("fail", False, "DeadlineExceeded")),
    "done at the run's deadline": (Failure(0, "DeadlineExceeded"), ("complete", False, "Completed")),
    "pods that are rejected": (Failure(None, "PodRefused"), ("fail", False, "PodRefused")),
    "held by a guard": (Failure(None, "SuspendedByGuard"), ("suspend", False, "SuspendedByGuard")),
    "stopped by the user": (Failure(143, "SuspendedByUser"), ("stop", False, "SuspendedByUser")),
    "b36: a worker is done without its driver": (
        Failure(0, role="trainer"),
        ("restart", True, "DistributedFault"),
    ),
    "the driver is done": (Failure(0, role="head"), ("complete", False, "Completed")),
}


def summary(decision: Decision) -> tuple[str, bool, str]:
    return decision.action, decision.counted, decision.reason


@pytest.mark.parametrize(("failure", "expected"), ENDS.values(), ids=ENDS.keys())
def test_without_rules(failure: Failure, expected: tuple[str, bool, str]) -> None:
    assert summary(decide(POLICY, failure, History(), 0.0)) == expected


# rules, failure -> (action, counted, reason)
RULES: dict[str, tuple[list[dict[str, Any]], Failure, tuple[str, bool, str]]] = {
    "the first that matches decides": (
        [{"action": "Restart", "counted": False, "exitCodes": [30]}, {"action": "Fail"}],
        Failure(30),
        ("restart", False, "DistributedFault"),
    ),
    "one that does not match is passed over": (
        [{"action": "Fail", "exitCodes": [31]}, {"action": "Fail", "reasons": ["Stalled"]}],
        Failure(30),
        ("restart", True, "DistributedFault"),
    ),
    "all its conditions have to hold": (
        [{"action": "Fail", "exitCodes": [137], "reasons": ["OOMKilled"], "roles": ["trainer"]}],
        Failure(137, "OOMKilled", role="rollout"),
        ("restart", True, "OOMKilled"),
    ),
    "by role": (
        [{"action": "Ignore", "roles": ["rollout"]}],
        Failure(137, role="rollout"),
        ("ignore", False, "Killed"),
    ),
    "a driver cannot be ignored, so it is not counted": (
        [{"action": "Ignore"}],
        Failure(137, role="head"),
        ("restart", False, "Killed"),
    ),
    "a signal as a shell reports it": (
        [{"action": "Fail", "exitCodes": [139]}],
        Failure(-11),
        ("fail", False, "Crashed"),
    ),
    "an eviction may count": (
        [{"action": "Restart", "counted": True, "reasons": ["Evicted"]}],
        Failure(143, "Evicted"),
        ("restart", True, "Evicted"),
    ),
    "sampling may restart": (
        [{"action": "Restart", "exitCodes": [20]}],
        Failure(20, suspends=True),
        ("restart", True, "SamplingExhausted"),
    ),
    "bad data is never retried": ([{"action": "Restart"}], Failure(11), ("fail", False, "BadData")),
    "what is done stays done": ([{"action": "Fail"}], Failure(0), ("complete", False, "Completed")),
}


@pytest.mark.parametrize(("rules", "failure", "expected"), RULES.values(), ids=RULES.keys())
def test_rules(rules: list[dict[str, Any]], failure: Failure, expected: tuple[str, bool, str]) -> None:
    policy = RunPolicy.model_validate({"failureRules": rules})
    assert summary(decide(policy, failure, History(), 0.0)) == expected


COUNTS = {
    "the last one allowed": (2, 137, "restart"),
    "one too many": (3, 137, "fail"),
    "more than that": (9, 137, "fail"),
    "uncounted ones go on": (3, 143, "restart"),
}


@pytest.mark.parametrize(("counted", "code", "action"), COUNTS.values(), ids=COUNTS.keys())
def test_restarts_are_bounded(counted: int, code: int, action: str) -> None:
    decision = decide(POLICY, Failure(code, message="It was killed."), History(counted=counted), 0.0)
    assert decision.action == action
    if action == "fail":
        assert decision.reason == "TooManyRestarts"
        assert decision.message == "It was killed: maxRestarts (3) counted restarts are used up."


def test_no_restart_at_all() -> None:
    policy = RunPolicy.model_validate({"maxRestarts": 0})
    assert decide(policy, Failure(137), History(), 0.0).action == "fail"


# (exit code, History) -> seconds
DELAYS: dict[str, tuple[int, History, float]] = {
    "the first restart": (137, History(), 10.0),
    "doubled": (137, History(counted=1), 20.0),
    "and again": (137, History(counted=2), 40.0),
    "up to a limit": (137, History(counted=2, fruitless=50), 40.0),
    "the first after a new step waits for nothing": (137, History(advanced=1), 0.0),
    "the second after a new step": (137, History(counted=1, advanced=1), 10.0),
    "an eviction waits for nothing": (143, History(counted=2), 0.0),
    "one after another without a step waits": (143, History(fruitless=1), 10.0),
    "longer each time": (143, History(fruitless=3), 40.0),
    "up to the limit": (143, History(fruitless=500), 60.0),
}


@pytest.mark.parametrize(("code", "history", "seconds"), DELAYS.values(), ids=DELAYS.keys())
def test_waits(code: int, history: History, seconds: float) -> None:
    assert decide(POLICY, Failure(code), history, 0.0).delay_seconds == seconds


FRUITLESS: dict[str, tuple[list[tuple[int | None, int | None]], int]] = {
    "none so far": ([], 0),
    "the last finished steps": ([(0, None), (0, 3)], 0),
    "none since": ([(0, 3), (3, None), (3, None)], 2),
    "never": ([(None, None), (0, None)], 2),
    "no step beyond the one it started from": ([(0, 3), (3, 3)], 1),
    "it did some steps once more": ([(0, 9), (5, 7)], 0),
}


@pytest.mark.parametrize(("attempts", "count"), FRUITLESS.values(), ids=FRUITLESS.keys())
def test_attempts_without_a_step(attempts: list[tuple[int | None, int | None]], count: int) -> None:
    assert fruitless(attempts) == count


DEADLINES = {"before": (99.0, "restart"), "at": (100.0, "fail"), "after": (1000.0, "fail")}


@pytest.mark.parametrize(("now", "action"), DEADLINES.values(), ids=DEADLINES.keys())
def test_the_deadline(now: float, action: str) -> None:
    policy = RunPolicy.model_validate({"activeDeadlineSeconds": 90})
    decision = decide(policy, Failure(137), History(started_at=10.0), now)
    assert decision.action == action
    assert action == "restart" or decision.reason == "DeadlineExceeded"


# spec, exit code, reason -> suspends
SUSPENDS: dict[str, tuple[dict[str, Any], int, str, bool]] = {
    "onExhausted Suspend": ({"algorithm": {"dynamicSampling": {"onExhausted": "Suspend"}}}, 20, "", True),
    "onExhausted Fail": ({"algorithm": {"dynamicSampling": {"onExhausted": "Fail"}}}, 20, "", False),
    "the guard that is named": (
        {"guards": [{"rule": "NonFinite", "action": "Fail"}, {"rule": "EntropyCollapse", "action": "Suspend"}]},
        21,
        "EntropyCollapse",
        True,
    ),
    "the other guard": (
        {"guards": [{"rule": "NonFinite", "action": "Fail"}, {"rule": "EntropyCollapse", "action": "Suspend"}]},
        21,
        "NonFinite",
        False,
    ),
    "no name, and one of them fails": (
        {"guards": [{"rule": "NonFinite", "action": "Fail"}, {"rule": "EntropyCollapse", "action": "Suspend"}]},
        21,
        "",
        False,
    ),
    "no guard acts": ({"guards": []}, 21, "", False),
}


@pytest.mark.parametrize(("spec", "code", "reason", "suspends"), SUSPENDS.values(), ids=SUSPENDS.keys())
def test_what_the_spec_says(spec: dict[str, Any], code: int, reason: str, suspends: bool) -> None:
    job = parse_job(merged(MINIMAL, {"spec": spec}))
    assert failure_of(job.spec, code, reason).suspends == suspends


@pytest.mark.parametrize(
    ("attempts", "steps"),
    [
        ([(0, None)], 0),
        ([(0, 30)], 30),
        ([(0, 73), (50, 73)], 0),
        ([(0, 73), (50, 95)], 22),
        ([(0, 73), (70, None), (70, 80)], 7),
        ([(0, None), (None, None)], 0),
    ],
    ids=["nothing", "the first", "the same step", "further", "a little further", "unknown"],
)
def test_b18_steps_beyond_all_earlier_attempts(attempts: list[tuple[int | None, int | None]], steps: int) -> None:
    assert advanced(attempts) == steps


# advanced -> (action, restarts, delay)
@pytest.mark.parametrize(
    ("steps", "expected"), [(19, ("fail", 3, 0.0)), (20, ("restart", 1, 0.0))], ids=["too few", "enough"]
)
def test_b18_new_steps_clear_the_count(steps: int, expected: tuple[str, int, float]) -> None:
    decision = decide(POLICY, Failure(1), History(counted=3, advanced=steps), 0.0)
    assert (decision.action, decision.restarts, decision.delay_seconds) == expected
