"""Rollouts come and go while their attempt runs: how they are replaced, added, drained and counted."""

from dataclasses import replace
from typing import Any

import pytest
from planner_bench import START, Bench, raw_job

from dapo_operator.jobs.actions import CreatePod
from dapo_operator.jobs.builders.support import support_objects
from dapo_operator.jobs.node_state import Node
from dapo_operator.jobs.planner.rollout_lives import EARLY_SECONDS, UNSEEN_SECONDS

HEAD, TRAINER = "first-head-1-0", "first-trainer-1-0"
ZERO, ONE = "first-rollout-1-0", "first-rollout-1-1"
BUDGET = ("PodDisruptionBudget", "first")


def started(replicas: int = 2, policy: dict[str, Any] | None = None, **rollout: Any) -> Bench:
    """A job whose pods are created."""
    topology = {"mode": "Separated", "rollout": {"replicas": replicas, **rollout}}
    return Bench(raw_job(topology=topology, runPolicy=policy or {}), slow_deletion=True).settle()


def trained(replicas: int = 2, policy: dict[str, Any] | None = None, **rollout: Any) -> Bench:
    """A job that trains for an hour, with all its rollouts."""
    bench = started(replicas, policy, **rollout).run_all().settle(1)
    bench.now += 3600
    return bench.progress(9).settle()


def rollouts(bench: Bench) -> list[str]:
    """The rollout pods that are neither over nor being deleted."""
    return sorted(p.name for p in bench.pods.values() if p.role == "rollout" and not p.deleting and not p.over)


def serve(bench: Bench) -> Bench:
    """Whatever was created runs and is ready."""
    for name, each in list(bench.pods.items()):
        if not each.over and not each.deleting:
            bench.change(name, phase="Running", scheduled=True, started=True, ready=True)
    return bench.settle(1)


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        pytest.param(
            {"exit_code": 137, "out_of_memory": True, "phase": "Failed", "ready": False}, "OOMKilled", id="oom"
        ),
        pytest.param({"exit_code": 1, "phase": "Failed", "ready": False}, "Crashed", id="crash"),
        pytest.param({"exit_code": 12, "phase": "Failed", "ready": False}, "ModelUnloadable", id="model"),
        pytest.param({"phase": "Failed", "ready": False, "disruption": "NodeRejected"}, "NodeRejected", id="rejected"),
        pytest.param({"deleting": True, "delete_by": START + 9000}, "PodDeleted", id="deleted"),
        pytest.param(
            {"deleting": True, "delete_by": START + 9000, "disruption": "Preempted"}, "Preempted", id="preempted"
        ),
        pytest.param({"deleting": True, "delete_by": START + 9000, "disruption": "Evicted"}, "Evicted", id="evicted"),
        pytest.param({"node": "gone"}, "NodeLost", id="lost node"),
        pytest.param({"node": "drained"}, "Drained", id="drained node"),
    ],
)
def test_a_lost_rollout_is_replaced_and_the_attempt_goes_on(end: dict[str, Any], reason: str) -> None:
    """One plan, with one write and one pod; what still runs there has its grace period."""
    bench = trained().seeing(nodes={"gone": Node(gone="it was deleted"), "drained": Node(leaving="it is cordoned")})
    bench.change(ONE, **end)
    plan = bench.step()
    assert [action.body["metadata"]["name"] for action in plan.actions if isinstance(action, CreatePod)] == [f"{ONE}-2"]
    known = bench.status
    bench.settle(1)
    assert bench.status.model_copy(update={"rollout_replicas": 1}) == known, "the number of pods waits for other news"
    assert (bench.attempts, rollouts(bench)) == ([(1, None)], [ZERO, f"{ONE}-2"])
    [life] = bench.status.rollout_lives or []
    assert (life.index, life.life, life.reason) == (1, 2, reason)
    assert bench.says("RolloutsDegraded") == ("True", "Starting")
    assert (bench.status.phase, bench.status.pods, bench.status.restarts) == ("Training", "3/4", "0")
    assert [event.reason for event in plan.events] == ["RolloutReplaced"]
    serve(bench)
    assert bench.says("RolloutsDegraded") == ("False", "RolloutsReady")
    assert (bench.status.pods, bench.status.rollout_replicas) == ("4/4", 2)


def test_a_name_never_comes_back_within_an_attempt() -> None:
    bench, names = trained(), {ZERO, ONE}
    for number in range(2, 9):
        newest = max((p for p in bench.pods.values() if p.index == 1 and p.role == "rollout"), key=lambda p: p.life)
        bench.vanish(newest.name)
        serve(bench.settle(EARLY_SECONDS + 1))
        assert rollouts(bench) == [ZERO, f"{ONE}-{number}"]
        assert rollouts(bench)[1] not in names
        names.add(rollouts(bench)[1])
    assert bench.attempts == [(1, None)]


def test_a_pod_that_was_just_created_and_is_not_seen_yet_is_asked_for_again_by_its_name() -> None:
    bench = trained().finish(ONE, 1)
    made = bench.look()
    bench.status = made.status
    bench.step(1)
    assert f"{ONE}-2" in bench.pods, "the operator died between status and pod"
    bench.vanish(f"{ONE}-2").step(UNSEEN_SECONDS + 5)
    assert f"{ONE}-3" in bench.pods, "it was lost unseen"


def test_a_rollout_that_is_killed_in_its_first_seconds_does_not_come_back_by_its_name() -> None:
    """Between two looks it was created, killed and gone."""
    bench = trained().finish(ONE, 1).settle()
    killed = replace(bench.pods[f"{ONE}-2"], deleting=True)
    bench.vanish(killed.name).seeing(gone=(killed,)).settle(1)
    assert rollouts(bench) == [ZERO, f"{ONE}-3"]


@pytest.mark.parametrize(
    ("seconds", "name"),
    [
        pytest.param(UNSEEN_SECONDS - 5, ONE, id="the watch may not know it yet"),
        pytest.param(UNSEEN_SECONDS + 5, f"{ONE}-2", id="lost unseen"),
    ],
)
@pytest.mark.parametrize("lacks", [(), (HEAD,)], ids=["with its head", "before its head was created"])
def test_a_name_does_not_come_back_while_the_attempt_starts(lacks: tuple[str, ...], seconds: float, name: str) -> None:
    """A rollout disappears while no operator is looking, or the operator died before it created it. Nodes of Ray are
    told apart by the names of their pods."""
    bench = started().change_all(created_at=START)
    for missing in (ONE, *lacks):
        bench.vanish(missing)
    bench.settle(seconds)
    assert rollouts(bench) == [ZERO, name] and not bench.events[1:]
    serve(bench)
    assert bench.holds("Training") and bench.says("RolloutsDegraded") == ("False", "RolloutsReady")


def test_lives_that_end_early_are_backed_off() -> None:
    bench = trained(policy={"backoffSeconds": 10, "backoffMaxSeconds": 60})
    waits = []
    for life in range(2, 8):
        newest = rollouts(bench)[1]
        bench.finish(newest, 1).settle()
        waits.append(0)
        while f"{ONE}-{life}" not in bench.pods:
            assert bench.says("RolloutsDegraded") == ("True", "BackingOff")
            wake = bench.look().wake_at
            assert wake is not None
            waits[-1] += int(wake - bench.now)
            bench.settle(wake - bench.now)
        serve(bench)
    assert waits == [0, 0, 10, 20, 40, 60]
    assert bench.attempts == [(1, None)]
    assert len([name for name in bench.names if name.startswith(ONE)]) <= 3, "one ended pod is kept for its log"
    assert sum(event.reason == "RolloutReplaced" for event in bench.events) == 2
    serve(bench.settle(EARLY_SECONDS + 100)).finish(rollouts(bench)[1], 1).settle()
    assert f"{ONE}-8" in bench.pods, "a life that lasted clears the backoff"


def test_a_name_does_not_come_back_soon_after_all_pods_were_ready() -> None:
    """They were created before that."""
    bench = started().change_all(created_at=START).settle(UNSEEN_SECONDS - 1).run_all().settle()
    assert bench.holds("Training")
    bench.vanish(ONE).settle(2)
    assert rollouts(bench) == [ZERO, f"{ONE}-2"]


def test_a_rollout_that_lost_its_head_lets_the_head_say_why() -> None:
    bench = trained(16)
    for name in rollouts(bench):
        bench.finish(name, 30, ended_at=bench.now)
    bench.settle(1)
    assert rollouts(bench) == []
    bench.finish(HEAD, 31, "StoresUnreachable", "The object store did not answer.").settle()
    assert bench.attempts[0] == (1, "StoresUnreachable")
    assert not any(event.reason == "RolloutReplaced" for event in bench.events)


@pytest.mark.parametrize("code", [pytest.param(0, id="the driver is done"), pytest.param(1, id="a crash")])
def test_a_rollout_whose_container_ended_a_moment_before_its_pod_keeps_its_log(code: int) -> None:
    bench = trained()
    ended = {"exit_code": code, "ended_at": bench.now, "ready": False}
    bench.change(ONE, **ended).settle(1)
    bench.change(ONE, **ended, phase="Failed" if code else "Succeeded").settle(1)
    assert not bench.pods[ONE].deleting


def test_a_rollout_whose_sidecar_goes_on_without_it_is_deleted() -> None:
    bench = trained()
    bench.change(ONE, exit_code=1, ended_at=bench.now, ready=False).settle(1)
    assert (bench.look().wake_at, bench.pods[ONE].deleting) == (bench.now + 19, False)
    assert bench.settle(20).pods[ONE].deleting


def test_a_head_that_lost_a_pod_does_not_mean_a_rollout_that_was_evicted() -> None:
    bench = trained().change(ONE, disruption="Evicted", deleting=True).finish(HEAD, 30).settle()
    assert bench.attempts[0] == (1, "DistributedFault")
    assert bench.status.attempts[0].role == "head"


def test_a_rollout_that_lost_only_its_ray_is_replaced_after_that_time() -> None:
    bench = trained().finish(ONE, 30, ended_at=START + 3600)
    bench.now = START + 3601
    bench.settle()
    assert bench.look().wake_at == START + 3620
    bench.settle(20)
    assert rollouts(bench) == [ZERO, f"{ONE}-2"]


@pytest.mark.parametrize("role", [HEAD, TRAINER])
def test_the_core_still_ends_the_attempt(role: str) -> None:
    bench = trained().finish(role, 137, reason="OOMKilled").settle(1)
    assert bench.status.attempts[-1].reason == "OOMKilled"
    assert bench.condition("RolloutsDegraded").status == "False"


@pytest.mark.parametrize(
    ("before", "after", "made", "deleted"),
    [
        pytest.param(2, 4, ["first-rollout-1-2", "first-rollout-1-3"], [], id="up"),
        pytest.param(4, 2, [], ["first-rollout-1-2", "first-rollout-1-3"], id="down"),
        pytest.param(2, 2, [], [], id="same"),
    ],
)
def test_scaling_takes_effect_at_once(before: int, after: int, made: list[str], deleted: list[str]) -> None:
    bench = trained(before).edit(topology={"rollout": {"replicas": after}})
    had = set(rollouts(bench))
    bench.settle()
    assert sorted(set(rollouts(bench)) - had) == made
    assert bench.deleted == deleted and bench.forced == []
    assert bench.says("SpecAccepted") == ("True", "SpecAccepted")
    serve(bench)
    assert (bench.attempts, bench.status.rollout_replicas, bench.status.pods) == (
        [(1, None)],
        after,
        f"{after + 2}/{after + 2}",
    )


def test_scaling_down_takes_those_that_do_not_serve_first_and_names_stay_unique() -> None:
    bench = trained(4).change("first-rollout-1-1", ready=False).edit(topology={"rollout": {"replicas": 3}}).settle()
    assert bench.deleted == ["first-rollout-1-1"]
    bench.vanish("first-rollout-1-1").settle(1)
    assert bench.says("RolloutsDegraded") == ("False", "RolloutsReady")
    bench.edit(topology={"rollout": {"replicas": 5}}).settle(60)
    assert "first-rollout-1-1-2" in bench.pods and "first-rollout-1-4" in bench.pods
    assert "first-rollout-1-1" not in bench.pods


@pytest.mark.parametrize(
    ("rollout", "run", "again"),
    [
        pytest.param({"replicas": 2}, 2, True, id="down"),
        pytest.param({"replicas": 2}, 4, True, id="down, and all run"),
        pytest.param({"minReplicas": 2}, 2, True, id="fewer required"),
        pytest.param({"minReplicas": 2}, 4, False, id="fewer required, and all run"),
        pytest.param({"replicas": 6}, 2, False, id="up"),
    ],
)
def test_no_driver_waits_for_rollouts_that_are_not_to_come(rollout: dict[str, Any], run: int, again: bool) -> None:
    """It reads once how many there have to be, and would wait until startTimeoutSeconds."""
    bench = started(4)
    for name in [HEAD, TRAINER, *(f"first-rollout-1-{index}" for index in range(run))]:
        bench.change(name, phase="Running", scheduled=True, started=True)
    bench.slow_deletion = False
    bench.edit(topology={"rollout": rollout}).settle().settle(60)
    assert bench.attempts == ([(1, "SpecChanged"), (2, None)] if again else [(1, None)])
    assert bench.status.restarts_counted in (None, 0)
    required = rollout.get("minReplicas") or rollout.get("replicas", 4)
    assert bench.status.attempts[-1].required_rollouts == (required if again else 4)


@pytest.mark.parametrize(
    ("least", "ready", "quorate"),
    [
        pytest.param(None, 4, True, id="all"),
        pytest.param(None, 3, False, id="one of all is missing"),
        pytest.param(2, 2, True, id="as many as required"),
        pytest.param(2, 1, False, id="too few"),
        pytest.param(0, 0, True, id="none required"),
    ],
)
def test_an_attempt_starts_with_the_rollouts_that_it_requires(least: int | None, ready: int, quorate: bool) -> None:
    bench = started(4, minReplicas=least)
    for name in [HEAD, TRAINER, *(f"first-rollout-1-{index}" for index in range(ready))]:
        bench.change(name, phase="Running", scheduled=True, started=True, ready=True)
    bench.settle(1)
    assert bench.holds("Training") == quorate
    if quorate and ready < 4:
        assert bench.says("RolloutsDegraded")[0] == "True"


def test_without_any_rollout_the_run_waits_and_is_not_stalled() -> None:
    bench = trained(2, {"stallTimeoutSeconds": 600}, minReplicas=0)
    for name in (ZERO, ONE):
        bench.change(name, deleting=True, disruption="Preempted").settle().vanish(name)
    trouble = {"trouble": "0/5 nodes are available", "trouble_reason": "Unschedulable"}
    for name in rollouts(bench.settle()):
        bench.change(name, **trouble)
    bench.settle(86_400)
    assert bench.says("RolloutsDegraded") == ("True", "NoRollouts")
    assert "0/5 nodes are available" in bench.condition("RolloutsDegraded").message
    assert bench.status.reason == "NoRollouts"
    for name in rollouts(bench):
        bench.change(name, trouble=None, trouble_reason=None)
    serve(bench)
    assert bench.attempts == [(1, None)] and bench.holds("Training")
    bench.settle(590)
    assert bench.attempts == [(1, None)]
    bench.settle(20)
    assert bench.status.attempts[0].reason == "Stalled", "the limit counts from the moment that one served"


def test_a_start_that_only_lacks_rollouts_ends_by_its_timeout() -> None:
    bench = started(3, {"startTimeoutSeconds": 600}, minReplicas=2)
    bench.change(HEAD, ready=True).change(TRAINER, ready=True).change(ZERO, ready=True)
    bench.settle(601)
    [ended, *_] = bench.status.attempts
    assert ended.reason == "StartTimeout" and "1 of 4 pods were not ready" in (ended.message or "")


@pytest.mark.parametrize(
    ("code", "reason"), [(2, "Usage"), (10, "InvalidSpec"), (11, "BadData"), (12, "ModelUnloadable")]
)
def test_what_no_retry_repairs_fails_a_start(code: int, reason: str) -> None:
    bench = started()
    bench.slow_deletion = False
    bench.finish(ZERO, code, reason).settle(1)
    assert (bench.says("Failed"), len(bench.attempts)) == (("True", reason), 1)


@pytest.mark.parametrize(
    ("rule", "ended"),
    [
        pytest.param({"action": "Fail"}, "fails", id="fail"),
        pytest.param({"action": "Restart", "roles": ["rollout"]}, "restarts", id="restart rollouts"),
        pytest.param({"action": "Restart", "counted": False}, "goes on", id="restart whatever it is"),
        pytest.param({"action": "Ignore", "roles": ["rollout"]}, "goes on", id="ignore"),
    ],
)
def test_a_rule_of_the_user_about_rollouts(rule: dict[str, Any], ended: str) -> None:
    bench = trained(policy={"failureRules": [rule]})
    bench.slow_deletion = False
    bench.finish(ONE, 1).settle(1).settle(60)
    assert {"fails": bench.holds("Failed"), "restarts": len(bench.attempts) == 2, "goes on": f"{ONE}-2" in bench.pods}[
        ended
    ]


def test_a_budget_protects_what_the_job_needs() -> None:
    policy = {"disruption": "Deny"}
    bench = trained(4, policy, minReplicas=2)
    first = bench.seen.support[BUDGET]
    assert bench.job.parsed is not None
    [body] = [each for each in support_objects(bench.job.parsed, "u", "") if each["kind"] == BUDGET[0]]
    assert body["spec"]["minAvailable"] == 4
    bench.edit(topology={"rollout": {"minReplicas": 3}}).settle()
    assert bench.seen.support[BUDGET] != first
    bench.change(ONE, node="n").seeing(nodes={"n": Node(leaving="it is cordoned")}).settle()
    assert ONE in rollouts(bench), "with Deny a drained node keeps its rollouts"


def test_nodes_that_a_rollout_found_unfit_are_avoided_by_its_next_life() -> None:
    bench = (
        trained().seeing(offering={"bad": 8, "good": 8}).change(ONE, node="bad").finish(ONE, 15, "NodeUnfit", "no GPU")
    )
    [made] = [action.body for action in bench.step().actions if isinstance(action, CreatePod)]
    affinity = made["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert affinity["nodeSelectorTerms"][0]["matchFields"][0]["values"] == ["bad"]
    assert bench.holds("NodesAvoided")


def test_with_kueue_an_attempt_gets_no_more_rollouts_than_were_admitted_with_it() -> None:
    bench = started(policy={"gang": {"scheduler": "kueue", "queue": "team"}}).admit("first-1").settle()
    bench.run_all().settle(1)
    bench.edit(topology={"rollout": {"replicas": 4}}).settle()
    assert (rollouts(bench), bench.status.pods) == ([ZERO, ONE], "4/4")
    bench.edit(topology={"rollout": {"replicas": 1}}).settle()
    assert (rollouts(bench), bench.deleted) == ([ZERO], [ONE])


def test_an_attempt_of_an_earlier_version_is_taken_over() -> None:
    bench = trained()
    [attempt] = bench.status.attempts
    bench.status = bench.status.model_copy(
        update={"attempts": [attempt.model_copy(update={"core": None, "rollouts": None, "shape": "1:abc"})]}
    )
    bench.pods[ONE] = replace(bench.pods[ONE], life=1)
    bench.settle()
    assert (bench.status.attempts[0].core, bench.status.attempts[0].rollouts) == (2, 2)
    bench.finish(ONE, 1).settle(1)
    assert (bench.attempts, rollouts(bench)) == ([(1, None)], [ZERO, f"{ONE}-2"])


def test_a_colocated_attempt_has_no_rollouts_whatever_the_spec_says_by_now() -> None:
    bench = Bench().training().edit(topology={"mode": "Separated"}).settle(60)
    assert bench.names == [HEAD, TRAINER]
    assert bench.says("SpecAccepted") == ("True", "AppliesAtNextAttempt")
