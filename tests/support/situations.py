"""Twenty-four situations of a job, brought about on the planner, and what `kubectl get dj` prints in each."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml
from planner_bench import START, Bench, raw_job

from dapo_core.run.guards import Alert
from dapo_core.run.status import CheckpointRef, Progress
from dapo_operator.jobs.dapojob import status_body
from dapo_operator.jobs.node_state import Node
from dapo_operator.kube.objects import unix_seconds

HEAD, TRAINER = "first-head-1-0", "first-trainer-1-0"
ALERT = Alert("EntropyCollapse", "Warn", "actor/entropy", 1, 20, 0.01, 0.05, "Entropy is low.")
CRD = Path(__file__).parents[2] / "charts/dapo/files/dapojobs.yaml"
PROGRESS = Progress(step=37, total_steps=200, reward=0.25, entropy=0.51, response_length=812, eta="2h13m")
Make = Callable[[], Bench]


@dataclass(frozen=True)
class Situation:
    """How it comes about, what it is in words, and STATUS, REASON, PODS and RESTARTS."""

    make: Make
    words: str
    line: tuple[str, str | None, str | None, str]


def training(**groups: Any) -> Bench:
    """An hour in, with steps and a checkpoint."""
    bench = Bench(raw_job(**groups), slow_deletion=True).training()
    bench.now += 3600
    checkpoint = CheckpointRef(step=30, uri="s3://bucket/runs/first/step-30")
    return bench.progress(37, checkpoint=checkpoint).seeing(progress=PROGRESS).settle()


def unschedulable() -> Bench:
    """The scheduler has a node for one of two pods."""
    trouble = {"trouble": "0/5 nodes are available", "trouble_reason": "Unschedulable"}
    bench = Bench().settle().change(HEAD, ready=True, phase="Running", scheduled=True)
    return bench.change(TRAINER, **trouble).settle()


def _queued() -> Bench:
    bench = Bench(raw_job(runPolicy={"gang": {"scheduler": "kueue", "queue": "team"}})).settle()
    return bench.settle(60)


def _image() -> Bench:
    fields = {"trouble": "ImagePullBackOff: no", "trouble_reason": "ImagePullBackOff", "scheduled": True}
    return Bench().settle().change(TRAINER, **fields).settle()


def _quota() -> Bench:
    bench = Bench()
    bench.step()
    return bench.refuse("quota", "exceeded quota").settle()


def _refused() -> Bench:
    bench = Bench()
    bench.step()
    bench.refuse("permanent")
    for _ in range(3):
        bench.step(1)
    return bench


def _kept() -> Bench:
    bench = training().change(TRAINER, finalizers=("a/b",)).finish(HEAD, 1)
    bench.slow_deletion = False
    bench.settle().step(91)
    return bench


def _restarted() -> Bench:
    bench = Bench().training().finish(HEAD, 143, disruption="Evicted").settle(60)
    bench.run_all().settle(1)
    return bench.finish("first-head-2-0", 137, reason="OOMKilled").settle(1)


def _ended(pod: str, code: int, reason: str) -> Bench:
    bench = training()
    bench.slow_deletion = False
    return bench.finish(pod, code, reason=reason).settle()


def _complete() -> Bench:
    return training().finish(HEAD, 0).finish(TRAINER, 0).settle()


def _worn_out() -> Bench:
    bench = Bench(raw_job(runPolicy={"maxRestarts": 0})).training()
    return bench.finish(HEAD, 137, reason="OOMKilled").settle()


def _guarded() -> Bench:
    stopping = replace(ALERT, action="Suspend")
    guard = {"rule": "EntropyCollapse", "action": "Suspend"}
    bench = training(guards=[guard])
    bench.slow_deletion = False
    return bench.seeing(alerts=(stopping,)).settle().settle()


def _suspended() -> Bench:
    bench = training()
    bench.slow_deletion = False
    return bench.edit(suspend=True).settle()


def _ended_again() -> Bench:
    """The first restart after new steps waits for nothing."""
    bench = _ended(HEAD, 137, "OOMKilled").run_all().settle(1)
    return bench.finish("first-head-2-0", 137, reason="OOMKilled").settle()


def _stalled() -> Bench:
    bench = _ended(HEAD, 137, "OOMKilled").run_all().settle(1)
    return bench.settle(3600)


def _node(node: Node) -> Bench:
    return training().change(TRAINER, node="gpu-7").seeing(nodes={"gpu-7": node}).settle()


def _rollouts(*lost: int) -> Bench:
    """Two rollouts, of which these were lost; their next lives are starting."""
    bench = training(topology={"mode": "Separated", "rollout": {"replicas": 2, "minReplicas": 0, "gpusPerPod": 0}})
    for index in lost:
        bench.finish(f"first-rollout-1-{index}", 137, out_of_memory=True)
    return bench.settle()


SITUATIONS: Mapping[str, Situation] = {
    "starting": Situation(
        lambda: Bench().settle(), "pods are being created, or their containers start", ("Starting", None, "0/2", "0")
    ),
    "no-node": Situation(unschedulable, "no node has room for a pod", ("Pending", "Unschedulable", "1/2", "0")),
    "queued": Situation(_queued, "the pods are in Kueue's queue", ("Pending", "WaitingForQuota", "0/2", "0")),
    "no-quota": Situation(
        _quota, "the namespace's ResourceQuota is used up", ("Starting", "QuotaExceeded", "0/2", "0")
    ),
    "no-image": Situation(_image, "an image cannot be pulled", ("Starting", "ImagePullBackOff", "0/2", "0")),
    "training": Situation(training, "it trains", ("Training", None, "2/2", "0")),
    "not-ready": Situation(
        lambda: training().change(TRAINER, ready=False).settle(),
        "it trains, and a pod is no longer ready",
        ("Training", "ContainerWaiting", "1/2", "0"),
    ),
    "rollout": Situation(
        lambda: _rollouts(1),
        "it trains, and a rollout was lost: the next one starts",
        ("Training", "Starting", "3/4", "0"),
    ),
    "no-rollout": Situation(
        lambda: _rollouts(0, 1), "all rollouts were lost: training waits", ("Training", "NoRollouts", "2/4", "0")
    ),
    "guard": Situation(
        lambda: training().seeing(alerts=(ALERT,)).settle(),
        "it trains, and a guard is active",
        ("Degraded", "EntropyCollapse", "2/2", "0"),
    ),
    "drained": Situation(
        lambda: _node(Node(leaving="it is cordoned")),
        "a node is drained: a checkpoint is saved",
        ("Stopping", "Drained", "2/2", "0"),
    ),
    "lost-node": Situation(
        lambda: _node(Node(gone="it was deleted")),
        "a node is lost: nothing can be saved",
        ("Stopping", "NodeLost", "1/2", "0"),
    ),
    "kept-pod": Situation(_kept, "a pod cannot be deleted", ("Stopping", "PodsRemain", "1/2", "0")),
    "backoff": Situation(
        _ended_again,
        "the next attempt waits for its backoff",
        ("Restarting", "OOMKilled", None, "2"),
    ),
    "again": Situation(
        _restarted, "the same, after an eviction that was not counted", ("Restarting", "OOMKilled", None, "1 (2)")
    ),
    "stalled": Situation(_stalled, "no step was finished for too long", ("Restarting", "Stalled", None, "2")),
    "suspending": Situation(
        lambda: training().edit(suspend=True).settle(),
        "`spec.suspend` was set: a checkpoint is saved",
        ("Suspending", "SuspendedByUser", "2/2", "0"),
    ),
    "suspended": Situation(
        _suspended, "it is suspended and holds no pods", ("Suspended", "SuspendedByUser", None, "0")
    ),
    "guard-stops": Situation(_guarded, "a guard suspended it", ("Suspended", "SuspendedByGuard", None, "0")),
    "invalid": Situation(
        lambda: Bench().edit(topology={"trainer": {"podTemplate": 5}}).settle(),
        "the spec is invalid",
        ("Failed", "InvalidSpec", None, "0"),
    ),
    "refused": Situation(_refused, "the API server rejects the pods", ("Failed", "PodRefused", None, "0")),
    "bad-data": Situation(
        lambda: _ended(HEAD, 11, "BadLabel"),
        "a data file is unusable; no retry would help",
        ("Failed", "BadLabel", None, "0"),
    ),
    "worn-out": Situation(_worn_out, "its restarts are used up", ("Failed", "TooManyRestarts", None, "0")),
    "complete": Situation(_complete, "all steps are done", ("Succeeded", "Completed", None, "0")),
}


def table(*, wide: bool = False) -> str:
    """What kubectl prints for all of them, one line each: the columns are those of the CRD."""
    [version] = yaml.safe_load(CRD.read_text())["spec"]["versions"]
    columns = [column for column in version["additionalPrinterColumns"] if wide or not column.get("priority")]
    rows = [["NAME", *(column["name"].upper() for column in columns)]]
    for name, situation in SITUATIONS.items():
        bench = situation.make()
        raw = {**bench.raw, "status": status_body(bench.status)}
        rows.append([name, *(_cell(raw, column, bench.now) for column in columns)])
    widths = [max(len(row[index]) for row in rows) for index in range(len(rows[0]))]
    lines = ("   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


def _cell(raw: Any, column: Mapping[str, str], now: float) -> str:
    value = raw
    for key in column["jsonPath"].lstrip(".").split("."):
        value = value.get(key) if isinstance(value, dict) else None
    if value is None:
        return ""
    match column["type"]:
        case "date":
            return _ago(now - (unix_seconds(value) or START))
        case "number":
            return f"{value:g}"
    return str(value)


def _ago(seconds: float) -> str:
    """As kubectl prints times."""
    whole = int(seconds)
    if whole < 120:
        return f"{whole}s"
    minutes, hours = divmod(whole, 60)[0], whole // 3600
    if hours < 3:
        return f"{minutes}m" if minutes >= 10 or whole % 60 == 0 else f"{minutes}m{whole % 60}s"
    return f"{hours}h{minutes % 60}m" if minutes % 60 and hours < 8 else f"{hours}h"
