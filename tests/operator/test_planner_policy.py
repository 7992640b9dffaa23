"""What follows an end, a guard or a stall, on the pure planner."""

from dataclasses import replace
from typing import Any

import pytest
from planner_bench import Bench, raw_job
from trainer_errors import ENDS

from dapo_core.run.guards import Alert
from dapo_core.run.last_words import ending
from dapo_core.run.status import CheckpointRef, DAPOJobStatus
from dapo_operator.jobs.planner.timeouts import HANG_SECONDS

HEAD, TRAINER = "first-head-1-0", "first-trainer-1-0"


def test_guards_and_their_hysteresis() -> None:
    alert = Alert("EntropyCollapse", "Suspend", "actor/entropy", 30, 41, 0.01, 0.05, "Entropy is 0.01.")
    guards = [{"rule": "EntropyCollapse", "action": "Suspend", "forSteps": 10}]
    bench = Bench(raw_job(guards=guards)).training().progress(41, alerts=(alert,)).settle()
    assert bench.says("Degraded") == ("True", "EntropyCollapse")
    assert bench.says("Suspended") == ("True", "SuspendedByGuard")
    bench.seen = replace(bench.seen, checkpoint=CheckpointRef(step=40, uri="s3://b/40"))
    bench.settle(60)
    assert bench.names == []
    # Any change of the spec is a person's word; the same alert then has to hold for as many steps again.
    bench.settle(3600)
    assert bench.says("Suspended")[0] == "True" and bench.status.stopped_generation == 1
    bench.edit(schedule={"steps": 300}).settle()
    bench.run_all().progress(42, alerts=(replace(alert, step=42),)).settle()
    assert bench.status.attempts[-1].number == 2 and bench.status.attempts[-1].ending_at is None
    bench.progress(50, alerts=(replace(alert, step=50),)).settle()
    assert bench.says("Suspended")[0] == "True"


def held_by_a_guard(rollout: dict[str, Any]) -> Bench:
    """A job in Separated mode that a guard has suspended."""
    topology: dict[str, Any] = {"mode": "Separated"} | ({"rollout": rollout} if rollout else {})
    alert = Alert("EntropyCollapse", "Suspend", "actor/entropy", 30, 41, 0.01, 0.05, "Entropy is 0.01.")
    guards = [{"rule": "EntropyCollapse", "action": "Suspend", "forSteps": 10}]
    bench = Bench(raw_job(topology=topology, guards=guards)).training().progress(41, alerts=(alert,)).settle()
    bench.seen = replace(bench.seen, checkpoint=CheckpointRef(step=40, uri="s3://b/40"))
    bench.settle(60)
    assert bench.says("Suspended") == ("True", "SuspendedByGuard") and bench.names == []
    return bench


@pytest.mark.parametrize(
    ("edit", "resumes"),
    [
        pytest.param({"topology": {"rollout": {"replicas": 3}}}, False, id="an autoscaler"),
        pytest.param({"runPolicy": {"maxRestarts": 9}}, True, id="a limit"),
        pytest.param(
            {"guards": [{"rule": "EntropyCollapse", "action": "Suspend", "forSteps": 20}]}, True, id="the guard"
        ),
        pytest.param({"topology": {"rollout": {"replicas": 3, "minReplicas": 1}}}, True, id="other numbers"),
    ],
)
@pytest.mark.parametrize("rollout", [{}, {"replicas": 2}], ids=["replicas by default", "replicas in the spec"])
def test_d10_only_a_person_resumes_a_job_that_a_guard_suspended(
    rollout: dict[str, Any], edit: dict[str, Any], resumes: bool
) -> None:
    """`kubectl scale` and autoscalers change the spec by the scale subresource, without a look at the job."""
    bench = held_by_a_guard(rollout)
    bench.edit(**edit).settle()
    assert bench.says("Suspended")[0] == ("False" if resumes else "True")
    assert bool(bench.names) == resumes
    if not resumes:
        bench.edit(suspend=True).settle().edit(suspend=False).settle()
        assert bench.says("Suspended") == ("False", "Resumed") and bench.names


def test_d10_a_suspended_job_of_an_earlier_version_is_resumed_by_any_edit() -> None:
    bench = held_by_a_guard({})
    bench.status = bench.status.model_copy(update={"stopped_spec": None})
    assert bench.settle(60).says("Suspended")[0] == "True"
    bench.edit(topology={"rollout": {"replicas": 3}}).settle()
    assert bench.says("Suspended")[0] == "False"


def test_d10_a_number_of_rollouts_that_was_invalid_is_corrected_by_scaling() -> None:
    """What is repaired is no matter of who does it."""
    topology = {"mode": "Separated", "rollout": {"replicas": 3, "maxReplicas": 2}}
    bench = Bench(raw_job(topology=topology)).settle()
    assert bench.says("Failed") == ("True", "InvalidSpec")
    bench.edit(topology={"rollout": {"replicas": 2}}).settle()
    assert bench.says("Failed")[0] == "False" and bench.names


def test_a_warning_guard_only_tells() -> None:
    alert = Alert("LengthExplosion", "Warn", "response_length/clip_ratio", 5, 15, 0.6, 0.5, "60% are cut.")
    bench = Bench().training().progress(15, alerts=(alert,)).settle()
    assert bench.status.phase == "Degraded"
    writes = bench.writes
    bench.progress(16, alerts=(replace(alert, step=16, value=0.7),)).settle()
    assert bench.writes == writes + 1, "the step, and nothing else"
    assert sum(event.reason == "LengthExplosion" for event in bench.events) == 1
    bench.progress(30, alerts=()).settle()
    assert bench.says("Degraded") == ("False", "Healthy")


def test_a_failing_guard_fails_the_job() -> None:
    alert = Alert("NonFinite", "Fail", "actor/grad_norm", 7, 7, 1.0, 0.0, "actor/grad_norm is not finite at step 7.")
    bench = Bench().training().progress(7, alerts=(alert,)).settle()
    assert bench.says("Failed") == ("True", "NonFinite")
    assert "not finite" in bench.condition("Failed").message


def test_a_stall_ends_the_attempt() -> None:
    bench = Bench().training().progress(9).settle()
    bench.settle(3599)
    assert bench.status.phase == "Training"
    bench.settle(2)
    assert bench.attempts[0] == (1, "Stalled")
    assert bench.status.restarts_counted == 1
    assert "after step 9" in (bench.status.attempts[0].message or "")


def silent(bench: Bench, pod: str = TRAINER, since: float | None = None) -> Bench:
    """A rank hangs, and the driver does not notice: the pod takes itself out of readiness."""
    return bench.change(pod, ready=False, silent_since=bench.now if since is None else since).settle()


@pytest.mark.parametrize("pod", [TRAINER, HEAD], ids=["a rank, while the driver lives", "the head's whole container"])
@pytest.mark.parametrize("store", ["none", "ok", "down"])
def test_a_pod_without_heartbeats_ends_the_attempt(pod: str, store: str) -> None:
    bench = silent(Bench().training().seeing(store=store), pod)
    assert bench.look().wake_at == bench.now + HANG_SECONDS
    bench.settle(HANG_SECONDS - 1)
    assert (bench.status.phase, bench.says("PodsReady")[0]) == ("Training", "False")
    bench.settle(1)
    assert (bench.attempts[0], bench.status.restarts_counted) == ((1, "Stalled"), 1)
    assert (bench.status.attempts[0].message or "").startswith(f"{pod}: a process hangs")


def test_a_pod_whose_ranks_go_on_has_not_hung() -> None:
    bench = silent(Bench().training())
    bench.settle(HANG_SECONDS - 1)
    bench.change(TRAINER, ready=True, silent_since=None).settle(10)
    bench.settle(HANG_SECONDS)
    assert bench.attempts == [(1, None)]
    silent(bench).settle(HANG_SECONDS)
    assert bench.attempts[0] == (1, "Stalled")


@pytest.mark.parametrize("since", [-86400.0, 86400.0], ids=["long ago", "in the future"])
def test_the_clock_of_a_node_ends_no_attempt_early(since: float) -> None:
    """Nor does a sidecar that was the one that was not ready until now."""
    bench = Bench().training()
    silent(bench, since=bench.now + since).settle(HANG_SECONDS - 1)
    assert bench.attempts == [(1, None)]


def test_a_step_proves_that_no_rank_hangs() -> None:
    """A kubelet that cannot look at its containers says that they are not ready."""
    bench = silent(Bench().training().progress(3).settle())
    for step in range(4, 10):
        bench.progress(step).settle(HANG_SECONDS - 10)
    assert bench.attempts == [(1, None)]
    bench.settle(HANG_SECONDS + 1)
    assert bench.attempts[0] == (1, "Stalled")


def test_a_rollout_that_is_not_ready_is_no_hang() -> None:
    bench = Bench(raw_job(topology={"mode": "Separated", "rollout": {"replicas": 2}})).training()
    silent(bench, "first-rollout-1-0").settle(10 * HANG_SECONDS)
    assert bench.attempts == [(1, None)]


@pytest.mark.parametrize(("code", "reason"), [(10, "InvalidSpec"), (11, "BadData"), (12, "ModelUnloadable")], ids=str)
def test_a_permanent_error_fails_with_the_trainers_own_words(code: int, reason: str) -> None:
    bench = Bench().training().finish(HEAD, code, reason, "train.parquet row 7: no column prompt.").settle()
    bench.settle(60)
    assert bench.says("Failed") == ("True", reason)
    assert bench.condition("Failed").message.startswith("train.parquet row 7: no column prompt.")
    assert bench.attempts == [(1, reason)]


def test_an_unfit_node_is_named_in_the_condition() -> None:
    words = "Node gpu-7 is unfit: GPUs: 7 of 8 (look at the node's device plug-in, and cordon the node)."
    bench = Bench(raw_job(runPolicy={"maxRestarts": 1, "backoffSeconds": 1})).training()
    bench.finish(TRAINER, 15, "NodeUnfit", words).settle()
    assert bench.attempts[0] == (1, "NodeUnfit") and bench.status.restarts_counted == 1
    assert f"{TRAINER}: {words}" in (bench.status.attempts[0].message or "")
    assert "gpu-7" in bench.condition("Training").message
    bench.settle(30)
    bench.run_all().settle()
    bench.finish("first-trainer-2-0", 15, "NodeUnfit", words).settle()
    assert "gpu-7" in bench.condition("Failed").message


def test_a_worker_that_lost_its_head_lets_the_head_say_why() -> None:
    bench = Bench().training().finish(TRAINER, 30, "DistributedFault", "The driver is gone.").settle(1)
    assert bench.deleted == [], "the head's own word is waited for"
    bench.finish(HEAD, 31, "StoresUnreachable", "The object store did not answer.").settle(3)
    assert bench.attempts[0] == (1, "StoresUnreachable")


def test_restarts_run_out() -> None:
    bench = Bench(raw_job(runPolicy={"maxRestarts": 2, "backoffSeconds": 1}))
    for number in (1, 2, 3):
        bench.training().finish(f"first-head-{number}-0", 30, "DistributedFault", "Ray is gone.").settle()
        bench.settle(30)
    assert bench.says("Failed") == ("True", "TooManyRestarts")
    assert bench.status.restarts_counted == 2


def test_a_failure_rule_of_the_user() -> None:
    rules = [{"action": "Fail", "roles": ["rollout"], "exitCodes": [99]}, {"action": "Ignore", "roles": ["rollout"]}]
    groups: dict[str, Any] = {"topology": {"mode": "Separated"}, "runPolicy": {"failureRules": rules}}
    bench = Bench(raw_job(**groups)).training().finish("first-rollout-1-0", 1).settle()
    assert bench.attempts == [(1, None)], "ignored"
    bench = Bench(raw_job(**groups)).training().finish("first-rollout-1-0", 99).settle()
    assert bench.says("Failed")[0] == "True"


@pytest.mark.parametrize(("error", "code", "reason", "_message"), ENDS.values(), ids=ENDS.keys())
def test_a_failure_rule_matches_what_the_trainer_writes(
    error: BaseException, code: int, reason: str, _message: str
) -> None:
    """Codes 10-12 fail whatever the rules say; with all others only the rule makes the job fail at once."""
    rules = {"failureRules": [{"action": "Fail", "reasons": [reason]}]}
    exit_code, words = ending(error)
    bench = Bench(raw_job(runPolicy=rules)).training().finish(HEAD, exit_code, words.reason, words.message).settle()
    assert (exit_code, bench.says("Failed")) == (code, ("True", reason))


def test_a_lost_status_never_brings_a_number_back() -> None:
    """Curves of two attempts of one number would be one curve: the metadata store knows which was the last."""
    bench = Bench(slow_deletion=True).training()
    bench.status = DAPOJobStatus()
    bench.seen = replace(bench.seen, store="ok", recorded_attempt=1)
    bench.settle()
    assert (bench.attempts, bench.deleted) == ([], [HEAD, TRAINER])
    bench.pods.clear()
    assert bench.settle().names == ["first-head-2-0", "first-trainer-2-0"]


@pytest.mark.parametrize(
    ("end", "reason", "counted"),
    [
        ({"disruption": "NodeLost", "deleting": True}, "NodeLost", 0),
        ({"exit_code": 137, "out_of_memory": True, "phase": "Failed"}, "OOMKilled", 1),
    ],
    ids=["taken", "out of memory"],
)
def test_a_pod_that_was_gone_at_once_says_why_all_the_same(end: dict[str, Any], reason: str, counted: int) -> None:
    """Its last state came with the news of its end."""
    bench = Bench().training()
    bench.seen = replace(bench.seen, gone=(replace(bench.pods[TRAINER], ready=False, **end),))
    bench.vanish(TRAINER).settle()
    assert bench.attempts[0] == (1, reason)
    assert bench.status.restarts_counted == counted


def test_a_head_that_completed_the_run_while_it_was_being_suspended() -> None:
    bench = Bench(slow_deletion=True).training().edit(suspend=True).settle()
    done = replace(bench.pods[HEAD], phase="Succeeded", exit_code=0, ready=False)
    bench.seen = replace(bench.seen, gone=(done,))
    bench.vanish(HEAD).settle()
    bench.pods.clear()
    bench.settle(60)
    assert bench.says("Succeeded") == ("True", "Completed")
