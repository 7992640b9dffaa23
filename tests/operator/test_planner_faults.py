"""The faults every operator has to survive, on the pure planner; those of pods and nodes are in test_pod_faults."""

from dataclasses import replace
from typing import Any

import pytest
from planner_bench import Bench, raw_job

from dapo_core.run.status import CheckpointRef, DAPOJobStatus
from dapo_operator.jobs.actions import CreatePod, CreateToken, RemoveFinalizer

HEAD, TRAINER = "first-head-1-0", "first-trainer-1-0"


def test_01_killed_between_status_and_pods() -> None:
    """The attempt is on record, its pods are not made: they are made by the next operator, in the same attempt."""
    bench = Bench()
    bench.status = bench.look().status
    bench.settle()
    assert bench.attempts == [(1, None)]
    assert bench.names == [HEAD, TRAINER]


def test_01_killed_between_two_pods() -> None:
    bench = Bench().settle().vanish(TRAINER)
    assert bench.settle().names == [HEAD, TRAINER]
    assert bench.attempts == [(1, None)]


def test_02_events_doubled_and_out_of_order() -> None:
    """A plan looks at what is there, so what came how often and in which order makes no difference."""
    bench = Bench().training()
    first = bench.look()
    bench.pods = dict(reversed(bench.pods.items()))
    assert bench.look() == first == bench.look()


def test_03_deleted_while_pending() -> None:
    bench = Bench().settle().delete_job()
    bench.settle()
    assert bench.names == []
    assert bench.job.held is False


def test_04_deleted_while_the_operator_was_down() -> None:
    """Nothing is known but what the API server says: still the head goes first, and then the job is let go."""
    bench = Bench(slow_deletion=True).training().delete_job()
    bench.status = DAPOJobStatus.model_validate(bench.status.model_dump(by_alias=True))
    bench.settle()
    assert bench.deleted == [HEAD]
    bench.vanish(HEAD).settle()
    assert bench.deleted == [HEAD, TRAINER]
    bench.vanish(TRAINER)
    assert RemoveFinalizer() in bench.step().actions


def test_05_same_name_and_another_uid() -> None:
    """Pods of a deleted job of the same name are neither taken over nor touched; the new job waits for them."""
    bench = Bench().settle()
    bench.change_all(owned=False)
    bench.raw, bench.status = raw_job(uid="another"), DAPOJobStatus()
    bench.settle()
    assert bench.says("PodsReady") == ("False", "NameTaken")
    assert bench.attempts == [] and bench.deleted == []
    bench.pods.clear()
    assert bench.settle().names == [HEAD, TRAINER]
    assert bench.status.run_id != Bench().settle().status.run_id


def test_11_quota() -> None:
    bench = Bench().settle().vanish(TRAINER)
    bench.refuse("quota", 'pods "first-trainer-1-0" is forbidden: exceeded quota: compute').settle()
    assert bench.says("PodsReady") == ("False", "QuotaExceeded")
    assert bench.names == [HEAD]
    bench.step(4)
    assert bench.names == [HEAD], "not before its time"
    bench.step(2)
    assert bench.names == [HEAD, TRAINER], "and then again"


def test_12_pod_security_is_permanent() -> None:
    bench = Bench().settle().vanish(HEAD).vanish(TRAINER)
    bench.refuse("permanent", "violates PodSecurity").settle()
    assert bench.says("Failed") == ("True", "PodRefused")
    assert bench.names == []
    writes = bench.writes
    for _ in range(20):
        bench.refuse("permanent", "violates PodSecurity").step(61)
    assert (bench.attempts, bench.writes) == ([(1, "PodRefused")], writes)
    assert bench.tried > 10, "it is asked now and then whether the pods would be taken"
    bench.seen = replace(bench.seen, acceptable=True)
    bench.step()
    bench.seen = replace(bench.seen, acceptable=False, refusal=None)
    assert bench.settle().says("Failed")[0] == "False"
    assert bench.names == ["first-head-2-0", "first-trainer-2-0"]


def test_13_a_partial_gang_is_freed() -> None:
    bench = Bench().settle().change(HEAD, phase="Running", ready=True, scheduled=True)
    bench.change(TRAINER, trouble="0/3 nodes are available", trouble_reason="Unschedulable").settle()
    assert bench.says("PodsReady") == ("False", "Unschedulable")
    said = f"1 of 2 pods has no node; {TRAINER}: 0/3 nodes are available. Free or add nodes, or request less."
    assert bench.condition("PodsReady").message == said
    bench.settle(1800)
    assert bench.names == []
    assert bench.says("PodsReady") == ("False", "BackingOff")
    wait = (bench.look().wake_at or 0) - bench.now
    assert 10 <= wait <= 21
    assert bench.settle(wait + 1).names == ["first-head-2-0", "first-trainer-2-0"]
    assert bench.status.restarts_counted == 0


def test_13_two_gangs_that_collided_come_back_apart() -> None:
    waits = []
    for uid in ("a", "b", "c", "d"):
        bench = Bench(raw_job(uid=uid)).settle().change(HEAD, scheduled=True)
        bench.settle(1800)
        waits.append(bench.status.next_attempt_at)
    assert len(set(waits)) > 1


def test_14_kueue_preempts() -> None:
    """The driver saves a checkpoint while all pods are there; the next attempt queues with a Workload of its own."""
    gang: dict[str, Any] = {"runPolicy": {"gang": {"scheduler": "kueue", "queue": "team"}}}
    bench = Bench(raw_job(**gang), slow_deletion=True).settle()
    assert (bench.names, list(bench.reservations)) == ([], ["first-1"])
    assert bench.says("QuotaReserved") == ("False", "WaitingForQuota")
    bench.settle(100_000)
    assert bench.attempts == [(1, None)], "waiting in a queue is no late start"
    bench.admit("first-1").training()
    assert bench.says("QuotaReserved") == ("True", "QuotaReserved")
    bench.admit("first-1", revoked="Preempted to accommodate a workload").settle()
    assert bench.deleted == [HEAD]
    bench.finish(HEAD, 143, "Terminated").vanish(HEAD).settle()
    assert list(bench.reservations) == ["first-1"], "its quota is in use while a pod is left"
    bench.vanish(TRAINER).settle()
    assert bench.attempts == [(1, "Preempted"), (2, None)]
    assert list(bench.reservations) == ["first-2"]
    assert bench.status.restarts_counted == 0


def test_15_suspended_and_resumed() -> None:
    bench = Bench(slow_deletion=True).training().edit(suspend=True).settle()
    assert bench.deleted == [HEAD], "the head saves a checkpoint while its workers are there"
    assert bench.status.phase == "Suspending"
    bench.finish(HEAD, 143, "Terminated").vanish(HEAD).settle()
    bench.vanish(TRAINER).settle()
    assert bench.status.phase == "Suspended"
    assert bench.says("Suspended") == ("True", "SuspendedByUser")
    bench.seen = replace(bench.seen, store="ok", checkpoint=CheckpointRef(step=40, uri="s3://b/40"))
    bench.edit(suspend=False).settle()
    assert bench.says("Suspended")[0] == "False"
    assert bench.status.attempts[-1].from_step == 40
    assert bench.status.restarts_counted == 0


def test_15_suspend_toggled_quickly() -> None:
    """Changed back before the pods are gone: the attempt still ends, since its head was told to, and one follows."""
    bench = Bench(slow_deletion=True).training().edit(suspend=True).settle().edit(suspend=False).settle()
    bench.vanish(HEAD).settle()
    bench.vanish(TRAINER).settle()
    assert bench.attempts == [(1, "SuspendedByUser"), (2, None)]
    assert bench.names == ["first-head-2-0", "first-trainer-2-0"]


def test_15_suspended_from_the_start() -> None:
    bench = Bench(raw_job(suspend=True)).settle()
    assert (bench.names, bench.status.phase) == ([], "Suspended")


def test_16_spec_edited_while_running() -> None:
    bench = Bench().training().edit(runPolicy={"maxRestarts": 9}, topology={"trainer": {"replicas": 4}}).settle()
    assert bench.says("SpecAccepted") == ("True", "AppliesAtNextAttempt")
    assert bench.names == [HEAD, TRAINER]
    assert bench.status.observed_generation == 2


def test_16_a_broken_edit_does_not_end_a_run() -> None:
    bench = Bench().training().edit(topology={"trainer": {"podTemplate": {"spec": {"hostname": "x"}}}}).settle()
    assert bench.says("SpecAccepted") == ("False", "InvalidSpec")
    assert bench.status.phase == "Training"
    bench.finish(HEAD, 30).settle(1)
    bench.settle(20)
    assert bench.says("Failed") == ("True", "InvalidSpec")
    assert "spec.topology.trainer.podTemplate.spec.hostname" in bench.condition("Failed").message
    bench.edit(topology={"trainer": {"podTemplate": {"spec": {"hostname": None}}}})
    del bench.raw["spec"]["topology"]["trainer"]["podTemplate"]["spec"]["hostname"]
    bench.settle()
    assert bench.says("Failed")[0] == "False"
    assert bench.names == ["first-head-2-0", "first-trainer-2-0"]


def test_17_pods_deleted_without_an_event() -> None:
    """After a 410 only the new list tells that they are gone."""
    bench = Bench().training().vanish(TRAINER).settle()
    assert bench.attempts[0] == (1, "PodDeleted")
    assert bench.names == ["first-head-2-0", "first-trainer-2-0"]
    assert bench.status.restarts_counted == 0


def test_18_too_many_requests() -> None:
    """What could not be carried out is planned again, unchanged: nothing is doubled by trying twice."""
    bench = Bench()
    plan = bench.look()
    bench.status = plan.status
    assert [a for a in bench.look().actions if isinstance(a, CreatePod)] == [
        a for a in plan.actions if isinstance(a, CreatePod)
    ]
    assert bench.look().status.attempts == plan.status.attempts


def test_19_a_silent_watch() -> None:
    """A stale view of a job is planned for as it is; the plan trusts that an attempt exists before it sees its pods."""
    bench = Bench().settle()
    pods, bench.pods = bench.pods, {}
    assert {a.body["metadata"]["name"] for a in bench.look().actions if isinstance(a, CreatePod)} == set(pods)
    assert bench.look().status.attempts[-1].number == 1


def test_20_names_at_the_limit() -> None:
    name = "a" * 44
    raw = raw_job(name=name)
    bench = Bench(raw).settle()
    assert max(len(pod) for pod in bench.names) <= 63
    assert len(bench.status.run_id or "") <= 63


def test_21_no_webhook_is_needed() -> None:
    """The plan refuses what CEL cannot check, and reports every mistake at once."""
    fights = {"spec": {"restartPolicy": "Always", "hostname": "x"}, "metadata": {"name": "y"}}
    bench = Bench(raw_job(topology={"head": {"podTemplate": fights}})).settle()
    message = bench.condition("Failed").message
    assert bench.names == []
    for field in ("spec.restartPolicy", "spec.hostname", "metadata.name"):
        assert f"spec.topology.head.podTemplate.{field}" in message


@pytest.mark.parametrize("hours", [-5, 5], ids=["behind", "ahead"])
def test_22_clock_skew(hours: int) -> None:
    """Another operator takes over whose clock is wrong: nothing is ended for what its clock says of the past."""
    bench = Bench(raw_job(runPolicy={"stallTimeoutSeconds": 86400})).training().progress(3).settle()
    bench.settle(hours * 3600)
    assert bench.attempts == [(1, None)]


def test_22_an_end_that_lies_ahead_is_not_waited_for() -> None:
    bench = Bench(slow_deletion=True).training().finish(TRAINER, 30, "DistributedFault", "No head.").settle()
    assert bench.deleted == [], "the head's own word is waited for"
    bench.settle(-5 * 3600)
    assert bench.deleted == [HEAD, TRAINER]


def test_23_the_metadata_store_is_down() -> None:
    bench = Bench().training().progress(3).settle()
    bench.seen = replace(bench.seen, store="down", progress=None)
    bench.settle(100_000)
    assert bench.says("ProgressKnown") == ("False", "MetadataUnreachable")
    assert bench.status.phase == "Training", "a stall is not seen, so nothing is ended for it"
    bench.seen = replace(bench.seen, store="ok", store_since=bench.now)
    bench.settle(60)
    assert bench.status.phase == "Training", "and the trainers first have to deliver what they kept"
    bench.progress(900).settle()
    assert bench.says("ProgressKnown")[0] == "True"


def test_24_the_object_store_is_down() -> None:
    """The trainer says so with 31: counted, and the last committed checkpoint is where the next attempt starts."""
    bench = Bench().training().progress(12, checkpoint=CheckpointRef(step=10, uri="s3://b/10")).settle()
    bench.finish(HEAD, 31, "StoresUnreachable", "The object store did not answer for 600 s.").settle()
    bench.settle(11)
    assert bench.attempts == [(1, "StoresUnreachable"), (2, None)]
    assert (bench.status.restarts_counted, bench.status.attempts[-1].from_step) == (1, 10)


def test_25_two_operators() -> None:
    """Both make the same plan; the second one's writes find everything there."""
    one, two = Bench().look(), Bench().look()
    assert one == two
    token = [action for action in one.actions if isinstance(action, CreateToken)]
    assert len(token) == 1 and "data" not in token[0].body


def test_25_pods_that_a_deposed_operator_makes_late_are_ended() -> None:
    bench = Bench().training().finish(HEAD, 30).settle()
    bench.settle(30)
    assert bench.attempts[-1][0] == 2
    old = Bench().settle().pods[TRAINER]
    bench.pods[old.name] = old
    bench.settle()
    assert old.name not in bench.names


def test_a_pod_that_a_finalizer_keeps_is_reported() -> None:
    bench = Bench(slow_deletion=True).training().change(TRAINER, finalizers=("example.com/audit",))
    bench.finish(HEAD, 1).settle()
    assert bench.names == [TRAINER]
    bench.step(91)
    assert bench.says("PodsReady") == ("False", "PodsRemain")
    assert "kept by the finalizer example.com/audit" in bench.condition("PodsReady").message
    bench.pods.clear()
    assert bench.settle().settle(60).attempts[-1][0] == 2


def test_a_pod_of_somebody_else_with_the_labels_of_the_job_is_reported() -> None:
    bench = Bench().training().change(TRAINER, owned=False).finish(HEAD, 1).settle().settle(60)
    assert bench.says("PodsReady") == ("False", "NameTaken")
    assert "remove its label dapo.io/job" in bench.condition("PodsReady").message
