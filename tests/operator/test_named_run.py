"""spec.runId: a job continues a run of its namespace that no other job trains."""

import asyncio
from copy import deepcopy
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import builders
import pytest
from builders import MINIMAL
from fake_kube import FakeKube
from metadata_databases import metadata_url, reader, writer
from planner_bench import Bench, raw_job
from simulated_operator import NAMESPACE, Operator, asyncio_run

from dapo_core.db import MetadataReader, MetadataWriter, RunRow
from dapo_core.run.status import CheckpointRef
from dapo_operator.jobs.actions import CreatePod
from dapo_operator.jobs.dapojob import JOBS, job_of
from dapo_operator.jobs.job_objects import Site
from dapo_operator.metadata_store import MetadataStore, RunSnapshot
from dapo_operator.reconciler import Reconciler

__all__ = ["metadata_url", "reader", "writer"]

RUN = "first-20260131-0412-x7k2"


def test_a_job_that_is_created_again_continues_its_run() -> None:
    bench = Bench(raw_job(runId=RUN))
    checkpoint = CheckpointRef(step=40, uri="s3://b/40")
    seen = {"store": "ok", "recorded_attempt": 3, "checkpoint": checkpoint, "run_namespace": "team"}
    bench.seen = replace(bench.seen, **seen)  # type: ignore[arg-type]
    bench.settle()
    (attempt,) = bench.status.attempts
    assert (bench.status.run_id, attempt.number, attempt.from_step) == (RUN, 4, 40)
    assert bench.names == ["first-head-4-0", "first-trainer-4-0"]


def test_nothing_starts_before_the_store_has_told_the_attempts_of_the_run() -> None:
    bench = Bench(raw_job(runId=RUN))
    bench.seen = replace(bench.seen, store="down", run_known=False)
    bench.settle()
    assert bench.names == [] and bench.says("PodsReady") == ("False", "MetadataUnreachable")
    bench.seen = replace(bench.seen, store="ok", run_known=True)
    assert bench.settle(1).names != []


def test_a_run_of_another_namespace_is_refused() -> None:
    bench = Bench(raw_job(runId=RUN))
    bench.seen = replace(bench.seen, store="ok", run_namespace="others")
    bench.settle()
    assert bench.names == [] and bench.status.phase == "Failed"
    assert bench.says("SpecAccepted") == ("False", "InvalidSpec")
    assert "is a run of another namespace" in bench.condition("Failed").message
    assert bench.edit(suspend=False).settle(1).names == [], "nor after an edit"


def test_a_run_that_another_job_trains_is_waited_for() -> None:
    bench = Bench(raw_job(runId=RUN))
    bench.seen = replace(bench.seen, run_pods=("other-head-1-0",))
    bench.settle()
    assert bench.says("PodsReady") == ("False", "RunInUse")
    assert "other-head-1-0" in bench.condition("PodsReady").message
    assert bench.look().wake_at == bench.now + 30
    bench.seen = replace(bench.seen, run_pods=())
    assert any(isinstance(action, CreatePod) for action in bench.look().actions)


def test_a_job_without_run_id_is_a_run_of_its_own() -> None:
    first, again = (job_of(raw_job(uid=uid), Site(image="t")) for uid in ("a", "b"))
    assert first.run_id != again.run_id
    assert job_of(raw_job(runId=RUN), Site(image="t")).run_id == RUN


def submit(kube: FakeKube, name: str, **spec: Any) -> None:
    raw = deepcopy(MINIMAL)
    raw["metadata"] = {"name": name, "namespace": NAMESPACE}
    raw["spec"] |= spec
    asyncio_run(kube.create(JOBS, raw))


def work(operator: Operator, seconds: int = 120) -> None:
    for _ in range(seconds):
        operator.pass_time(1)


def jobs_with_pods(kube: FakeKube) -> set[str]:
    return {pod["metadata"]["labels"]["dapo.io/job"] for pod in kube.of_kind("Pod")}


def reason(kube: FakeKube, name: str) -> str:
    status = kube.objects[(JOBS.plural, NAMESPACE, name)].get("status", {})
    return next((each["reason"] for each in status.get("conditions", ()) if each["type"] == "PodsReady"), "")


def test_two_jobs_never_train_one_run_at_once() -> None:
    kube = FakeKube(1, 1_800_000_000.0)
    for name in ("a", "b"):
        submit(kube, name, runId=RUN)
    operator = Operator(kube)
    work(operator)
    (training,) = jobs_with_pods(kube)
    (waiting,) = {"a", "b"} - {training}
    assert reason(kube, waiting) == "RunInUse"
    work(Operator(kube))
    assert jobs_with_pods(kube) == {training}, "nor does another life of the operator forget it"
    kube.mark_deleted(kube.objects[(JOBS.plural, NAMESPACE, training)])
    work(Operator(kube), 300)
    assert jobs_with_pods(kube) == {waiting}


def test_the_job_that_began_a_run_waits_for_the_one_that_continues_it() -> None:
    kube = FakeKube(1, 1_800_000_000.0)
    submit(kube, "a")
    operator = Operator(kube)
    work(operator)
    first = kube.objects[(JOBS.plural, NAMESPACE, "a")]
    kube.update(first, spec={**first["spec"], "suspend": True})
    work(operator)
    submit(kube, "b", runId=first["status"]["runId"])
    work(operator)
    assert jobs_with_pods(kube) == {"b"}
    first = kube.objects[(JOBS.plural, NAMESPACE, "a")]
    kube.update(first, spec={**first["spec"], "suspend": False})
    work(operator)
    assert jobs_with_pods(kube) == {"b"} and reason(kube, "a") == "RunInUse"


def test_the_store_tells_whose_run_it_is(writer: MetadataWriter, reader: MetadataReader, metadata_url: str) -> None:
    writer.create_run(RunRow(RUN, "first", "team", {}, created_at=1.0))
    store = MetadataStore(metadata_url, lambda: 0.0)
    for run_id in (RUN, "new-20260131-0412-x7k2"):
        store.watch(run_id, builders.job(guards=[]).spec, lambda: None)
        assert not store.view(run_id).known
    asyncio.run(store._read(reader))
    assert (store.view(RUN).known, store.view(RUN).namespace) == (True, "team")
    unknown = store.view("new-20260131-0412-x7k2")
    assert (unknown.known, unknown.namespace) == (True, None)


def test_without_a_store_any_run_is_taken_over() -> None:
    store = MetadataStore(None, lambda: 0.0)
    store.watch(RUN, builders.job().spec, lambda: None)
    assert store.view(RUN).known


@pytest.mark.parametrize("namespace", [pytest.param("others", id="another's"), pytest.param("team", id="its own")])
def test_a09_a_status_that_names_anothers_run_shows_nothing_of_it(namespace: str) -> None:
    """Who may write the status, or MultiKueue, which copies it from another cluster."""
    raw = raw_job()
    raw["status"] = {"runId": RUN}
    job = job_of(raw, Site(image="t"))
    view = RunSnapshot(known=True, namespace=namespace, reached=40)
    shared = SimpleNamespace(store=SimpleNamespace(view={RUN: view}.__getitem__))
    assert Reconciler._is_foreign(cast(Reconciler, SimpleNamespace(shared=shared)), job) == (namespace != "team")
