"""Trainers that outlive their attempt: which of them stay, when the next attempt begins, and when all pods are new."""

from collections.abc import Callable
from typing import Any

import pytest
from planner_bench import Bench, raw_job

from dapo_operator.jobs.actions import CreatePod
from dapo_operator.jobs.node_state import Node
from dapo_operator.jobs.observed import Pod
from dapo_operator.jobs.planner.in_place import LEAVE_SECONDS, MARGIN_SECONDS, MAX_BACKOFF_SECONDS

HEAD = "first-head-1-0"
TRAINERS = ["first-trainer-1-0", "first-trainer-1-1"]
NEXT = ["first-head-2-0", *TRAINERS]
NEW = ["first-head-2-0", "first-trainer-2-0", "first-trainer-2-1"]
LOST = {"reason": "DistributedFault", "message": "A rank is gone."}


def trained(restart: str = "InPlace", policy: dict[str, Any] | None = None, **topology: Any) -> Bench:
    """A job with two trainers that trains for an hour."""
    topology = {"trainer": {"replicas": 2, "gpusPerPod": 8}} | topology
    batch = {"prompts": 512, "responsesPerPrompt": 16, "miniBatchResponses": 512}
    bench = Bench(raw_job(topology=topology, batch=batch, runPolicy={"restart": restart} | (policy or {}))).training()
    bench.now += 3600
    return bench.progress(9).settle()


def leave(bench: Bench, *names: str) -> Bench:
    """Trainers that lost their head have ended their processes and wait for the next one."""
    for name in names:
        bench.change(name, ready=False)
    return bench


def waiting(bench: Bench) -> Bench:
    """One restart was counted before, so that the next one is preceded by `backoffSeconds`."""
    bench.status = bench.status.model_copy(update={"restarts_counted": 1})
    return bench


def ended(bench: Bench, code: int = 30) -> Bench:
    """The head has ended, the trainers have left, and the backoff is over."""
    number = bench.status.attempts[-1].number
    leave(bench.finish(f"first-head-{number}-0", code, **LOST), *TRAINERS).settle()
    return bench.settle(45).settle(15)


def live(bench: Bench) -> list[str]:
    return sorted(pod.name for pod in bench.pods.values() if not pod.over and not pod.deleting)


def test_a_lost_rank_costs_only_the_head_pod() -> None:
    bench = trained()
    uids = {name: bench.pods[name].uid for name in TRAINERS}
    ended(bench)
    assert live(bench) == NEXT
    assert {name: bench.pods[name].uid for name in TRAINERS} == uids
    assert not set(bench.deleted) & set(TRAINERS)
    first, second = bench.status.attempts
    assert (first.trainers_stay, second.number, second.trainers_created_in) == (True, 2, [1, 1])
    bench.run_all().settle(1)
    assert bench.status.attempts[-1].ready_at is not None
    assert (bench.status.phase, bench.status.pods) == ("Training", "3/3")
    assert "2 trainer pods stayed" in next(e.message for e in reversed(bench.events) if e.reason == "AttemptStarted")


def test_pods_stay_for_attempt_after_attempt_that_finishes_steps() -> None:
    bench = ended(trained())
    for number in (2, 3):
        bench.run_all().settle(1).progress(10 * number).settle(60)
        ended(bench)
    assert [attempt.number for attempt in bench.status.attempts] == [1, 2, 3, 4]
    assert bench.status.attempts[-1].trainers_created_in == [1, 1]
    assert live(bench) == ["first-head-4-0", *TRAINERS]


def test_an_attempt_in_place_without_a_step_is_followed_by_new_pods() -> None:
    bench = ended(trained())
    bench.run_all().settle(1)
    ended(bench)
    assert live(bench) == ["first-head-3-0", "first-trainer-3-0", "first-trainer-3-1"]
    assert bench.status.attempts[-1].trainers_created_in is None


def test_the_next_attempt_begins_when_no_process_of_the_old_one_is_left() -> None:
    bench = trained().finish(HEAD, 30, **LOST)
    leave(bench, TRAINERS[0]).settle(20)
    assert (len(bench.status.attempts), live(bench)) == (1, TRAINERS), "one of them is still ready"
    leave(bench, TRAINERS[1]).settle(1).settle(15)
    assert live(bench) == NEXT


def test_a_trainer_whose_rank_hung_before_the_head_ended_is_replaced() -> None:
    bench = trained()
    bench.change(TRAINERS[0], ready=False, silent_since=bench.now - 60).finish(HEAD, 30, ended_at=bench.now, **LOST)
    bench.change(TRAINERS[1], ready=False, silent_since=bench.now + 9).settle(15).settle(15)
    assert live(bench) == ["first-head-2-0", "first-trainer-1-1", "first-trainer-2-0"]


def test_a_trainer_that_does_not_leave_is_replaced() -> None:
    bench = trained().finish(HEAD, 30, **LOST)
    leave(bench, TRAINERS[0]).settle()
    bench.settle(LEAVE_SECONDS + 1).settle(15)
    assert live(bench) == ["first-head-2-0", "first-trainer-1-0", "first-trainer-2-1"]
    assert bench.status.attempts[-1].trainers_created_in == [1, 2]


def _lose(bench: Bench) -> None:
    bench.finish(TRAINERS[0], 137, out_of_memory=True)


def _delete(bench: Bench) -> None:
    bench.change(TRAINERS[0], deleting=True, delete_by=bench.now + 30)


def _drain(bench: Bench) -> None:
    bench.change(TRAINERS[0], node="gpu-7").seeing(nodes={"gpu-7": Node(leaving="it is cordoned")})


def _unfit(bench: Bench) -> None:
    bench.change(TRAINERS[0], node="gpu-7").finish(TRAINERS[0], 15, "NodeUnfit", "No NVLink.", node="gpu-7")


@pytest.mark.parametrize("fault", [_lose, _delete, _drain, _unfit], ids=["killed", "deleted", "drained", "unfit"])
def test_only_the_pod_that_is_lost_is_created_anew(fault: Callable[[Bench], None]) -> None:
    bench = trained()
    fault(bench)
    bench.finish(HEAD, 30, **LOST)
    leave(bench, TRAINERS[1]).settle()
    bench.pods.pop(TRAINERS[0], None)
    bench.settle(15).settle(15)
    assert live(bench) == ["first-head-2-0", "first-trainer-1-1", "first-trainer-2-0"]
    assert bench.status.attempts[-1].trainers_created_in == [2, 1]


def test_a_pod_that_joins_others_knows_that_they_will_not_meet_it() -> None:
    bench = waiting(trained())
    _lose(bench)
    leave(bench.finish(HEAD, 30, **LOST), TRAINERS[1]).settle()
    made: dict[str, dict[str, str]] = {}
    for _ in range(40):
        for action in bench.step(1).actions:
            if isinstance(action, CreatePod):
                env = action.body["spec"]["containers"][0]["env"]
                made[action.body["metadata"]["name"]] = {each["name"]: each.get("value", "") for each in env}
    assert sorted(made) == ["first-head-2-0", "first-trainer-2-0"]
    assert made["first-trainer-2-0"]["DAPO_TRAINERS_STAYED"] == "1"
    assert made["first-trainer-2-0"]["DAPO_RESTART"] == "InPlace"
    assert "DAPO_RESTART" not in made["first-head-2-0"]


def test_a_trainer_that_is_deleted_before_all_are_ready_is_created_anew() -> None:
    bench = ended(trained()).vanish(TRAINERS[1]).settle(1)
    assert live(bench) == ["first-head-2-0", "first-trainer-1-0", "first-trainer-2-1"]
    assert bench.status.attempts[-1].trainers_created_in == [1, 2]
    bench.run_all().settle(1)
    assert bench.status.phase == "Training"


def test_a_late_pod_of_an_earlier_attempt_is_no_part_of_it() -> None:
    bench = ended(trained()).run_all().settle(1)
    late = bench.pods[TRAINERS[0]]
    bench.pods[HEAD] = Pod(HEAD, "late", "head", 1, 0, phase="Running")
    bench.settle(1)
    assert live(bench) == NEXT and bench.pods[TRAINERS[0]] == late


def _recreate(bench: Bench) -> None:
    bench.edit(runPolicy={"restart": "Recreate"})


def _edit(bench: Bench) -> None:
    bench.edit(schedule={"steps": 500})


def _pod_template(bench: Bench) -> None:
    bench.edit(topology={"trainer": {"podTemplate": {"metadata": {"labels": {"a": "b"}}}}})


@pytest.mark.parametrize("edit", [_recreate, _edit, _pod_template], ids=["policy", "job file", "pods"])
def test_edited_pods_are_all_created_anew(edit: Callable[[Bench], None]) -> None:
    bench = trained()
    edit(bench)
    ended(bench.settle())
    assert live(bench) == NEW


def test_trainers_of_a_job_that_was_scaled_stay() -> None:
    """Only the driver reads how many rollouts there are."""
    bench = trained(mode="Separated", rollout={"replicas": 1})
    ended(bench.scale(replicas=2).settle())
    assert live(bench) == sorted([*NEXT, "first-rollout-2-0", "first-rollout-2-1"])
    pinned = bench.status.pinned
    assert pinned is not None and (pinned.revision, pinned.scaled_from is None) == (bench.job.revision, False)
    bench.run_all().settle(1).progress(20).settle(60)
    ended(bench)
    assert bench.status.attempts[-1].trainers_created_in == [1, 1]


def test_a_job_that_is_suspended_meanwhile_keeps_no_pod() -> None:
    bench = waiting(trained(policy={"backoffSeconds": 60}))
    leave(bench.finish(HEAD, 30, **LOST), *TRAINERS).settle(1)
    assert live(bench) == TRAINERS
    bench.edit(suspend=True).settle(1)
    assert (live(bench), bench.status.phase) == ([], "Suspended")
    bench.edit(suspend=False).settle(1).settle(60)
    assert live(bench) == NEW


@pytest.mark.parametrize("code", [10, 0], ids=["an invalid job", "done"])
def test_a_run_that_is_over_keeps_no_pod(code: int) -> None:
    bench = trained()
    leave(bench.finish(HEAD, code), *TRAINERS).settle(60).settle(60)
    assert live(bench) == []


def test_a_long_backoff_frees_the_pods() -> None:
    bench = waiting(trained(policy={"backoffSeconds": MAX_BACKOFF_SECONDS + 1, "backoffMaxSeconds": 3600}))
    leave(bench.finish(HEAD, 30, **LOST), *TRAINERS).settle(1)
    assert live(bench) == []


def test_pods_do_not_wait_for_ever() -> None:
    bench = waiting(trained(policy={"backoffSeconds": 60}))
    leave(bench.finish(HEAD, 30, **LOST), *TRAINERS).settle(1)
    # Nobody looked for a while.
    bench.now += MAX_BACKOFF_SECONDS + MARGIN_SECONDS
    bench.settle(1)
    assert live(bench) == NEW


@pytest.mark.parametrize(
    ("restart", "policy", "seen"),
    [
        pytest.param("Recreate", {}, {}, id="recreate"),
        pytest.param("InPlace", {"gang": {"scheduler": "volcano", "queue": "team"}}, {}, id="gang scheduler"),
        pytest.param("InPlace", {}, {"reason": "Stalled"}, id="stalled"),
    ],
)
def test_pods_are_created_anew(restart: str, policy: dict[str, Any], seen: dict[str, str]) -> None:
    bench = trained(restart, policy)
    if seen:
        bench.now += 7200  # no step: the attempt has stalled, and its head is deleted
        leave(bench.settle(), *(name for name in TRAINERS if name in bench.pods)).settle(15).settle(15)
    else:
        ended(bench)
    assert live(bench) == NEW
