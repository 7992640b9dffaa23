"""Limits of a run: what counts against them, what clears them, and how a job continues once they are raised."""

from typing import Any

import pytest
from planner_bench import Bench, raw_job

HEAD, DAY = "first-head-{}-0", 86_400


def crash(bench: Bench, step: int, code: int = 1) -> Bench:
    """The newest attempt trains up to `step` and crashes; the next one is ready if there is one."""
    number = bench.status.attempts[-1].number
    bench.progress(step).settle()
    bench.finish(HEAD.format(number), code)
    for _ in range(4):
        bench.settle(400)
    if bench.status.attempts[-1].number > number:
        bench.run_all().settle(1)
    return bench


def stuck(bench: Bench, times: int) -> Bench:
    """The pods of so many attempts do not get a node in time."""
    for _ in range(times):
        bench.settle(1900).settle(700)
    return bench


def test_b18_faults_that_are_rare_do_not_add_up() -> None:
    bench = Bench().training()
    for fault in range(12):
        crash(bench, (fault + 1) * 100)
        assert bench.status.restarts_counted == 1
    assert bench.status.phase == "Training" and bench.status.restarts_total == 12


def test_b18_a_fault_that_comes_back_at_the_same_step_ends_the_run() -> None:
    bench = Bench().training()
    for _ in range(6):
        crash(bench, 73)
    assert bench.says("Failed") == ("True", "TooManyRestarts")


def test_b18_a_run_that_cannot_start_gives_up() -> None:
    bench = Bench(raw_job(runPolicy={"maxUncountedRestarts": 3})).settle()
    stuck(bench, 3)
    assert bench.status.restarts_uncounted == {"StartTimeout": 3} and not bench.status.restarts_counted
    stuck(bench, 1)
    assert bench.says("Failed") == ("True", "TooManyRestarts")
    assert "maxUncountedRestarts (3) restarts because of StartTimeout" in bench.condition("Failed").message
    assert bench.names == []


def test_b18_preemption_is_not_limited() -> None:
    bench = Bench(raw_job(runPolicy={"maxUncountedRestarts": 1})).training()
    for number in range(1, 6):
        bench.finish(HEAD.format(number), 143, disruption="Preempted").settle(60)
        bench.settle(700)
        bench.run_all().settle(1)
    assert bench.status.phase == "Training" and bench.status.attempts[-1].number == 6


@pytest.mark.parametrize("first", ["maxRestarts", "maxUncountedRestarts"])
def test_b18_a_failed_job_continues_when_its_limit_is_raised(first: str) -> None:
    policy = {"maxRestarts": 1, "maxUncountedRestarts": 1}
    bench = Bench(raw_job(runPolicy=policy))
    if first == "maxRestarts":
        bench.training()
        crash(crash(bench, 3), 3)
    else:
        stuck(bench.settle(), 2)
    assert bench.says("Failed") == ("True", "TooManyRestarts")
    attempts = len(bench.attempts)
    bench.edit(runPolicy={"backoffSeconds": 20}).settle()
    assert bench.says("Failed")[0] == "True", "it is not this that has ended it"
    bench.edit(topology={"trainer": {"podTemplate": 5}}).settle().edit(
        topology={"trainer": {"podTemplate": {}}}
    ).settle()
    assert bench.says("Failed")[0] == "True", "nor does an invalid spec undo it"
    bench.edit(runPolicy={first: 5}).settle()
    assert bench.says("Failed") == ("False", "Resumed") and len(bench.attempts) == attempts + 1
    bench.run_all().settle(1)
    assert bench.status.phase == "Training"


def test_b18_a_run_that_passed_its_deadline_continues_when_it_is_raised() -> None:
    bench = Bench(raw_job(runPolicy={"activeDeadlineSeconds": 3600})).training()
    bench.settle(3600)
    assert bench.says("Failed") == ("True", "DeadlineExceeded")
    bench.edit(runPolicy={"activeDeadlineSeconds": 7200}).settle()
    bench.run_all().settle(1)
    assert bench.status.phase == "Training"
    bench.settle(3601)
    assert bench.says("Failed") == ("True", "DeadlineExceeded")


@pytest.mark.parametrize("code", [11, 12])
def test_b18_a_run_that_failed_for_another_reason_stays_failed(code: int) -> None:
    bench = Bench().training().finish("first-head-1-0", code).settle()
    bench.edit(runPolicy={"maxRestarts": 50}).settle().edit(topology={"trainer": {"podTemplate": 5}}).settle()
    assert bench.edit(topology={"trainer": {"podTemplate": {}}}).settle().status.phase == "Failed"
    assert len(bench.attempts) == 1


def test_b20_a_suspended_run_does_not_use_its_time_up() -> None:
    bench = Bench(raw_job(runPolicy={"activeDeadlineSeconds": 3600})).training()
    bench.settle(1000).edit(suspend=True).settle().settle(DAY)
    assert bench.status.phase == "Suspended" and bench.status.active_seconds == 1001
    bench.edit(suspend=False).settle()
    bench.run_all().settle(1)
    assert bench.status.phase == "Training"
    assert bench.settle(2500).status.phase == "Training"
    assert bench.settle(200).says("Failed") == ("True", "DeadlineExceeded")


def test_b20_a_queue_does_not_use_the_time_up() -> None:
    gang = {"gang": {"scheduler": "volcano"}, "activeDeadlineSeconds": 3600}
    bench = Bench(raw_job(runPolicy=gang)).settle().settle(DAY)
    assert bench.attempts == [(1, None)]
    bench.run_all().settle(1)
    bench.settle(3000)
    assert bench.status.phase == "Training"
    assert bench.settle(700).says("Failed") == ("True", "DeadlineExceeded")


@pytest.mark.parametrize("case", ["invalid", "refused"])
def test_b30_a_job_that_never_started_is_deleted_after_its_time_to_live(case: str) -> None:
    policy: dict[str, Any] = {"ttlSecondsAfterFinished": 600}
    if case == "invalid":
        bench = Bench(raw_job(runPolicy=policy, topology={"trainer": {"podTemplate": 5}})).settle()
    else:
        bench = Bench(raw_job(runPolicy=policy))
        bench.step()
        bench.refuse("permanent")
        for _ in range(3):
            bench.step(1)
    assert bench.says("Failed")[0] == "True" and not bench.job_deleted
    bench.step(601)
    assert bench.job_deleted
