"""What the executor makes of an API server that refuses objects."""

import asyncio
import gc
from dataclasses import replace
from typing import Any

import pytest
from fake_kube import FakeKube
from planner_bench import SITE, START, Bench, raw_job
from simulated_operator import asyncio_run

from dapo_operator.children import Children
from dapo_operator.executor import ActionResult, Executor, Refusals
from dapo_operator.jobs.actions import CreatePod, DeletePod
from dapo_operator.jobs.dapojob import FINALIZER, JOBS, job_of
from dapo_operator.jobs.gangs.gang_scheduler import Reservation
from dapo_operator.jobs.observed import Refusal
from dapo_operator.kube.objects import ConflictError, UnreachableError, error_of

KEY = ("team", "first")


def acted(what: str, code: int, status: dict[str, Any], job: dict[str, Any] | None = None) -> ActionResult:
    """The first plan of a job, carried out by an API server that gives this error to `what`."""
    kube = FakeKube(1, START)

    def fault(name: str, after: bool) -> None:
        if name == what and not after:
            raise error_of(code, status)

    kube.fault = fault
    bench = Bench(job or raw_job())
    plan = bench.look()
    result: ActionResult = asyncio_run(
        Executor(kube, Children(lambda key: None)).act(KEY, bench.job, plan, START, Refusals())  # type: ignore[arg-type]
    )
    return result


QUOTA = 'pods "first-head-1-0" is forbidden: exceeded quota: few, requested: pods=1, used: pods=1, limited: pods=1'
SECURITY = 'pods "first-head-1-0" is forbidden: violates PodSecurity "restricted:latest": runAsNonRoot != true'


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [
        pytest.param(422, {"reason": "Invalid", "message": 'Pod "x" is wrong'}, "permanent", id="invalid"),
        pytest.param(400, {"reason": "BadRequest", "message": "unknown field"}, "permanent", id="strict decoding"),
        pytest.param(403, {"reason": "Forbidden", "message": QUOTA}, "quota", id="quota"),
        pytest.param(403, {"reason": "Forbidden", "message": SECURITY}, "permanent", id="pod security"),
        pytest.param(403, {"reason": "Forbidden", "message": "webhook x denied the request"}, "other", id="webhook"),
        pytest.param(404, {"reason": "NotFound", "message": 'namespaces "team" not found'}, "other", id="namespace"),
        pytest.param(500, {"message": 'failed calling webhook "x"'}, "other", id="webhook is down"),
    ],
)
def test_a_refused_pod(code: int, status: dict[str, Any], kind: str) -> None:
    result = acted("create pods", code, status)
    assert result.refusal == Refusal(kind, "Pod first-head-1-0", status["message"], START, 1)  # type: ignore[arg-type]
    assert result.created == 0


def test_a_cluster_without_the_gang_scheduler() -> None:
    job = raw_job(runPolicy={"gang": {"scheduler": "volcano"}})
    result = acted("create podgroups", 404, {"message": "the server could not find the requested resource"}, job)
    assert result.refusal is not None
    assert (result.refusal.kind, result.refusal.what) == ("gang", "PodGroup first-1")


def test_an_api_server_that_is_down_refuses_nothing() -> None:
    with pytest.raises(UnreachableError):
        acted("create pods", 503, {"message": "unavailable"})


def test_room_is_given_back_before_more_is_asked_for() -> None:
    """An API server in trouble answered none of the deletions for minutes, and a job had the room of three attempts."""
    kube, asked = FakeKube(1, START), list[str]()

    def fault(name: str, after: bool) -> None:
        asked.append(name)
        if name == "delete podgroups":
            raise error_of(503, {"message": "no answer"})

    kube.fault = fault
    bench = Bench(raw_job(runPolicy={"gang": {"scheduler": "volcano"}}))
    bench.reservations["first-0"] = Reservation("volcano", "first-0", "old", 0)
    with pytest.raises(UnreachableError):
        asyncio_run(
            Executor(kube, Children(lambda key: None)).act(KEY, bench.job, bench.look(), START, Refusals())  # type: ignore[arg-type]
        )
    assert "delete podgroups" in asked and "create podgroups" not in asked


def test_a_pod_that_went_at_once_has_no_version() -> None:
    bench = Bench(raw_job())
    plan = bench.look()
    pod = next(action.body for action in plan.actions if isinstance(action, CreatePod))
    ended = {"namespace": "team", "uid": "u", "deletionTimestamp": "2026-01-01T00:00:00Z"}

    class Quick(FakeKube):
        async def delete(self, *_: Any) -> dict[str, Any]:
            return {"kind": "Pod", **pod, "metadata": {**pod["metadata"], **ended}}

    acting = Executor(Quick(1, START), Children(lambda key: None))  # type: ignore[arg-type]
    plan = replace(plan, actions=(DeletePod("x", "u"),))
    outcome: ActionResult = asyncio_run(acting.act(KEY, bench.job, plan, START, Refusals()))
    assert (outcome.deleted, outcome.undeletable) == (1, None)


def test_the_finalizer_is_added_to_those_of_others() -> None:
    kube = FakeKube(1, START)
    raw = raw_job() | {"kind": "DAPOJob"}
    raw["metadata"]["finalizers"] = ["example.com/quota", "example.com/audit"]
    raw = asyncio_run(kube.create(JOBS, raw))
    executor = Executor(kube, Children(lambda key: None))  # type: ignore[arg-type]
    job = job_of(raw, SITE)
    held = asyncio_run(executor.add_finalizer(job, raw))
    assert held["metadata"]["finalizers"] == ["example.com/quota", "example.com/audit", FINALIZER]
    with pytest.raises(ConflictError):
        asyncio_run(executor.add_finalizer(job, raw))
    asyncio_run(executor.remove_finalizer(job, held))
    assert kube.of_kind("DAPOJob")[0]["metadata"]["finalizers"] == ["example.com/quota", "example.com/audit"]


def test_an_operator_that_ends_leaves_no_coroutine_behind(recwarn: pytest.WarningsRecorder) -> None:
    """Its tasks are cancelled, some of them before they have begun."""
    for looks in range(8):
        bench = Bench()
        executor = Executor(FakeKube(1, START), Children(lambda key: None))  # type: ignore[arg-type]

        async def ends(executor: Executor = executor, bench: Bench = bench, looks: int = looks) -> None:
            task = asyncio.create_task(executor.act(KEY, bench.job, bench.look(), START, Refusals()))
            for _ in range(looks):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

        asyncio.run(ends())
    gc.collect()
    assert [str(warning.message) for warning in recwarn] == []
