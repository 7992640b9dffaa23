"""A job's ordinary life: from nothing to pods, to training, to its end."""

from dataclasses import replace
from typing import Any

import pytest
from planner_bench import START, UID, Bench, raw_job

from dapo_core.run.status import CheckpointRef
from dapo_operator.jobs.actions import AddFinalizer, CreatePod, CreateToken, Plan
from dapo_operator.kube.objects import timestamp

SEPARATED: dict[str, Any] = {"topology": {"mode": "Separated", "rollout": {"replicas": 2}}}


@pytest.mark.parametrize(
    ("groups", "pods"),
    [
        ({}, ["first-head-1-0", "first-trainer-1-0"]),
        (SEPARATED, ["first-head-1-0", "first-rollout-1-0", "first-rollout-1-1", "first-trainer-1-0"]),
        ({"topology": {"trainer": {"replicas": 2}}}, ["first-head-1-0", "first-trainer-1-0", "first-trainer-1-1"]),
    ],
    ids=["colocated", "separated", "two trainers"],
)
def test_pods_by_mode(groups: dict[str, Any], pods: list[str]) -> None:
    assert Bench(raw_job(**groups)).settle().names == pods


def test_the_attempt_is_recorded_with_the_plan_that_makes_its_pods() -> None:
    plan = Bench().look()
    assert [attempt.number for attempt in plan.status.attempts] == [1]
    assert isinstance(plan.actions[0], AddFinalizer)
    assert sum(isinstance(action, CreatePod) for action in plan.actions) == 2


def test_training_once_all_pods_are_ready() -> None:
    bench = Bench().training()
    assert bench.status.phase == "Training"
    assert bench.says("PodsReady") == ("True", "PodsReady")
    assert bench.says("Training") == ("True", "Training")
    assert [event.reason for event in bench.events] == ["AttemptStarted", "PodsReady"]
    assert bench.writes == 2


def test_a_settled_job_costs_no_writes() -> None:
    bench = Bench().training()
    for _ in range(50):
        bench.step(60)
    assert bench.writes == 2


def test_a_run_that_is_complete_keeps_its_pods_for_their_logs() -> None:
    bench = Bench().training().finish("first-head-1-0", 0).finish("first-trainer-1-0", 0).settle()
    assert bench.says("Succeeded") == ("True", "Completed")
    assert bench.status.phase == "Succeeded"
    assert bench.names == ["first-head-1-0", "first-trainer-1-0"]
    assert bench.events[-1].reason == "Completed"


def test_workers_that_outlive_a_complete_run_are_ended_after_their_grace() -> None:
    bench = Bench().training().finish("first-head-1-0", 0).settle(1)
    assert bench.says("PodsReady") == ("False", "Ending")
    assert bench.settle(31).names == ["first-head-1-0"]
    assert bench.says("Succeeded")[0] == "True"


def test_the_next_attempt_starts_from_the_newest_checkpoint() -> None:
    bench = Bench().training().progress(37, checkpoint=CheckpointRef(step=35, uri="s3://b/35")).settle()
    bench.finish("first-trainer-1-0", 137, out_of_memory=True).settle()
    bench.settle(10)
    newest = bench.status.attempts[-1]
    assert (newest.number, newest.from_step) == (2, 35)
    assert bench.status.attempts[0].to_step == 37
    assert "checkpoint of step 35" in bench.events[-1].message


def test_progress_is_shown() -> None:
    bench = Bench().training().progress(12).settle()
    assert bench.status.progress is not None
    assert (bench.status.progress.step, bench.status.progress.total_steps) == (12, 200)


def test_time_to_live() -> None:
    bench = Bench(raw_job(runPolicy={"ttlSecondsAfterFinished": 60})).training()
    bench.finish("first-head-1-0", 0).finish("first-trainer-1-0", 0).settle()
    assert bench.look().wake_at == bench.now + 60
    bench.step(61)
    assert bench.job_deleted


def test_active_deadline() -> None:
    bench = Bench(raw_job(runPolicy={"activeDeadlineSeconds": 3600})).training()
    assert bench.look().wake_at == START + 3600
    bench.settle(3600)
    assert bench.says("Failed") == ("True", "DeadlineExceeded")
    assert bench.names == []


def test_support_that_somebody_removed_is_put_back() -> None:
    bench = Bench().training()
    gone = {key: digest for key, digest in bench.seen.support.items() if key[0] != "Service"}
    bench.seen = replace(bench.seen, support=gone)
    bench.settle()
    assert ("Service", "first") in bench.seen.support
    assert bench.status.phase == "Training"


def test_support_that_is_refused_while_training_is_not_asked_for_all_the_time() -> None:
    bench = Bench().training()
    bench.seen = replace(bench.seen, support={})
    bench.refuse("quota", "exceeded quota: services").step()
    assert bench.look().actions == ()
    assert bench.look().wake_at == bench.now + 5
    assert bench.condition("PodsReady").message.endswith("(retrying): exceeded quota: services")
    bench.settle(6)
    assert bench.condition("PodsReady").message == "All 2 pods are ready."


def test_a_job_file_that_is_edited_while_the_pods_start_is_read_by_new_pods() -> None:
    bench = Bench().settle()
    before = dict(bench.seen.support)
    bench.edit(schedule={"steps": 300}).settle()
    assert bench.attempts == [(1, "SpecChanged"), (2, None)]
    assert {kind for kind, _ in bench.seen.support.keys() - before.keys()} == {"ConfigMap"}, "another job file"


def _asks_for_a_token(plan: Plan) -> bool:
    return any(isinstance(action, CreateToken) for action in plan.actions)


def test_the_token_is_made_once() -> None:
    bench = Bench()
    assert _asks_for_a_token(bench.look())
    bench.training().finish("first-head-1-0", 31).settle()
    bench.now += 20
    plan = bench.look()
    assert plan.status.attempts[-1].number == 2
    assert not _asks_for_a_token(plan), "attempt 1 was ready, so it had one"


def test_a_token_that_somebody_removed_is_made_again() -> None:
    """Pods that lack it never start; the attempt after them makes sure."""
    bench = Bench().training().finish("first-head-1-0", 31).settle()
    bench.settle(20)
    bench.settle(1800)
    bench.now += 60
    plan = bench.look()
    assert (plan.status.attempts[-1].number, plan.status.attempts[-2].reason) == (3, "StartTimeout")
    assert _asks_for_a_token(plan)


def test_b37_a_token_that_somebody_removed_is_made_while_the_pods_wait_for_it() -> None:
    bench = Bench().training().finish("first-head-1-0", 31).settle()
    bench.settle(20)
    missing = {"trouble_reason": "CreateContainerConfigError", "scheduled": True}
    bench.change_all(trouble='CreateContainerConfigError: secret "dapo-stores" not found', **missing)
    assert not _asks_for_a_token(bench.look()), "the operator does not make that one"
    bench.change_all(trouble=f'CreateContainerConfigError: secret "first-ray-{UID}" not found', **missing)
    assert _asks_for_a_token(bench.look())


def test_b35_what_has_not_happened_is_false_from_the_start() -> None:
    bench = Bench().settle()
    for kind in ("Suspended", "Succeeded", "Failed"):
        assert bench.says(kind) == ("False", "Starting")


def test_every_condition_follows_the_generation_of_the_spec() -> None:
    """`kubectl wait` ignores a condition whose observedGeneration is older than the object."""
    bench = Bench().training().progress(3).settle()
    bench.edit(runPolicy={"maxRestarts": 9}).settle(60)
    assert {each.observed_generation for each in bench.status.conditions} == {2}
    bench.finish("first-head-1-0", 0).finish("first-trainer-1-0", 0).settle()
    bench.edit(runPolicy={"ttlSecondsAfterFinished": 86400}).settle(60)
    assert {each.observed_generation for each in bench.status.conditions} == {3}
    assert bench.condition("Succeeded").last_transition_time == timestamp(START + 61)


def test_more_steps_that_were_asked_for_while_training_are_run() -> None:
    bench = Bench(raw_job(schedule={"steps": 200})).training().edit(schedule={"steps": 400}).settle()
    assert bench.says("SpecAccepted") == ("True", "AppliesAtNextAttempt")
    assert "runs to step 200" in bench.condition("SpecAccepted").message
    bench.finish("first-head-1-0", 0).finish("first-trainer-1-0", 0).settle()
    assert bench.attempts == [(1, "Completed"), (2, None)]
    assert bench.status.restarts_counted == 0
    bench.run_all().settle()
    assert bench.says("SpecAccepted") == ("True", "SpecAccepted")
    bench.finish("first-head-2-0", 0).finish("first-trainer-2-0", 0).settle()
    assert bench.status.phase == "Succeeded"


NETWORK = {("Service", "first"), ("NetworkPolicy", "first")}


def test_b27_what_connected_the_pods_of_a_finished_run_is_deleted() -> None:
    bench = Bench().training()
    assert set(bench.seen.support) >= NETWORK
    bench.finish("first-head-1-0", 0)
    bench.look()
    assert set(bench.seen.support) >= NETWORK, "a pod still runs"
    bench.finish("first-trainer-1-0", 0).settle()
    assert bench.says("Succeeded")[0] == "True"
    assert {kind for kind, _ in bench.seen.support} == {"ConfigMap"}
    assert bench.names == ["first-head-1-0", "first-trainer-1-0"], "kept for their logs"


def test_b27_a_failed_run_that_continues_is_connected_first() -> None:
    bench = Bench(raw_job(runPolicy={"maxRestarts": 0})).training().finish("first-head-1-0", 30).settle(60)
    assert bench.says("Failed") == ("True", "TooManyRestarts")
    assert not set(bench.seen.support) & NETWORK
    bench.edit(runPolicy={"maxRestarts": 3}).settle(60)
    assert set(bench.seen.support) >= NETWORK and bench.attempts[-1] == (2, None)
