"""The line of `kubectl get dj`, in each situation; and what is not worth a write of it."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from planner_bench import SITE, START, Bench, raw_job

from dapo_core.run.guards import Alert
from dapo_core.run.status import DAPOJobStatus
from dapo_operator.job_state import StatusWrites

DELAY_SECONDS = SITE.status_delay_seconds
HEAD, TRAINER = "first-head-1-0", "first-trainer-1-0"
ALERT = Alert("EntropyCollapse", "Warn", "actor/entropy", 1, 20, 0.01, 0.05, "Entropy is low.")


def unschedulable(bench: Bench) -> Bench:
    trouble = {"trouble": "0/5 nodes are available", "trouble_reason": "Unschedulable"}
    return bench.settle().change(HEAD, ready=True, phase="Running", scheduled=True).change(TRAINER, **trouble).settle()


def image(bench: Bench) -> Bench:
    fields = {"trouble": "ImagePullBackOff: no", "trouble_reason": "ImagePullBackOff", "scheduled": True}
    return bench.settle().change(TRAINER, **fields).settle()


def quota(bench: Bench) -> Bench:
    bench.step()
    return bench.refuse("quota", "exceeded quota").settle()


def refused(bench: Bench) -> Bench:
    bench.step()
    bench.refuse("permanent")
    for _ in range(3):
        bench.step(1)
    return bench


def kept(bench: Bench) -> Bench:
    bench.training().change(TRAINER, finalizers=("a/b",)).finish(HEAD, 1).settle()
    bench.step(91)
    return bench


def restarted(bench: Bench) -> Bench:
    bench.training().finish(HEAD, 143, disruption="Evicted").settle(60)
    bench.run_all().settle(1)
    return bench.finish("first-head-2-0", 137, reason="OOMKilled").settle(1)


SITUATIONS: dict[str, tuple[Callable[[Bench], Bench], tuple[str, str | None, str | None, str]]] = {
    "new": (lambda bench: bench.settle(), ("Starting", None, "0/2", "0")),
    "no node": (unschedulable, ("Pending", "Unschedulable", "1/2", "0")),
    "no image": (image, ("Starting", "ImagePullBackOff", "0/2", "0")),
    "no quota": (quota, ("Starting", "QuotaExceeded", "0/2", "0")),
    "training": (lambda bench: bench.training(), ("Training", None, "2/2", "0")),
    "a pod is not ready": (
        lambda bench: bench.training().change(TRAINER, ready=False).settle(),
        ("Training", "ContainerWaiting", "1/2", "0"),
    ),
    "a guard holds": (
        lambda bench: bench.training().progress(20, alerts=(ALERT,)).settle(),
        ("Degraded", "EntropyCollapse", "2/2", "0"),
    ),
    "waiting": (
        lambda bench: bench.training().finish(HEAD, 137, reason="OOMKilled").settle(1),
        ("Restarting", "OOMKilled", None, "1"),
    ),
    "a pod that stays": (kept, ("Stopping", "PodsRemain", "1/2", "0")),
    "an eviction and a crash": (restarted, ("Restarting", "OOMKilled", None, "1 (2)")),
    "suspended": (
        lambda bench: bench.training().edit(suspend=True).settle(),
        ("Suspended", "SuspendedByUser", None, "0"),
    ),
    "invalid": (
        lambda bench: bench.edit(topology={"trainer": {"podTemplate": 5}}).settle(),
        ("Failed", "InvalidSpec", None, "0"),
    ),
    "refused": (refused, ("Failed", "PodRefused", None, "0")),
    "bad data": (
        lambda bench: bench.training().finish(HEAD, 11, reason="BadLabel").settle(),
        ("Failed", "BadLabel", None, "0"),
    ),
    "complete": (
        lambda bench: bench.training().finish(HEAD, 0).finish(TRAINER, 0).settle(),
        ("Succeeded", "Completed", None, "0"),
    ),
}


@pytest.mark.parametrize(("situation", "line"), SITUATIONS.values(), ids=SITUATIONS.keys())
def test_the_line_says_why(situation: Callable[[Bench], Bench], line: tuple[str, str | None, str | None, str]) -> None:
    status = situation(Bench()).status
    assert (status.phase, status.reason, status.pods, status.restarts) == line
    assert status.gpus is None or status.gpus == 1


def stored(bench: Bench, state: str, **fields: float) -> Bench:
    bench.seen = replace(bench.seen, store=state, **fields)  # type: ignore[arg-type]
    return bench


def test_b22_a_short_outage_of_the_store_costs_no_write() -> None:
    bench = stored(Bench(), "ok").training()
    writes = bench.writes
    for state in ("down", "readonly"):
        stored(bench, state, store_failed_at=bench.now).settle(DELAY_SECONDS - 1)
        stored(bench, "ok").settle(1)
    assert bench.writes == writes


def test_b22_an_outage_that_lasts_is_told() -> None:
    bench = stored(Bench(), "ok").training()
    stored(bench, "down", store_failed_at=bench.now)
    assert bench.look().wake_at == bench.now + DELAY_SECONDS
    bench.settle(DELAY_SECONDS)
    assert bench.says("ProgressKnown") == ("False", "MetadataUnreachable")


def test_b22_a_job_that_starts_during_an_outage_says_so_at_once() -> None:
    bench = stored(Bench(), "down", store_failed_at=START).settle()
    assert bench.says("ProgressKnown") == ("False", "MetadataUnreachable")


def numbered(status: DAPOJobStatus, count: int) -> DAPOJobStatus:
    """The status with another number in the scheduler's sentence."""
    conditions = [
        each.model_copy(update={"message": f"0/{count} nodes are available."}) if each.type == "PodsReady" else each
        for each in status.conditions
    ]
    return status.model_copy(update={"conditions": conditions})


def test_b23_another_number_in_the_schedulers_sentence_waits() -> None:
    status, writes, written = unschedulable(Bench()).status, StatusWrites(DELAY_SECONDS), 0
    writes.wrote(START)
    old = numbered(status, 0)
    for second in range(1, 121):
        new = numbered(status, second)
        if writes.due(old, new, START + second):
            writes.wrote(START + second)
            old, written = new, written + 1
    assert written == 120 / DELAY_SECONDS
    assert writes.due(old, status.model_copy(update={"phase": "Training"}), START + 121), "anything else does not"


def test_wide_columns() -> None:
    gang = {"gang": {"scheduler": "kueue", "queue": "team"}}
    status = Bench(raw_job(runPolicy=gang, topology={"trainer": {"gpusPerPod": 8, "replicas": 2}})).settle().status
    assert (status.gpus, status.attempt) == (16, 1)
