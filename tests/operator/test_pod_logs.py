"""What `dapo logs` gets from a cluster: the log of a pod that still exists, else the job's run."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from kubernetes.aio.client import Configuration

from dapo_core.cli.log_reading import ClusterAnswer, LogPrinter, LogRequest
from dapo_core.naming import Role, child_labels, child_name
from dapo_operator import pod_logs
from dapo_operator.kube.client import KubeClient
from dapo_operator.kube.connection import Connection, NoClusterError

RUN = "math-20261121-0412-x7k2"
PODS: list[tuple[int, Role, int]] = [(2, "head", 0), (10, "head", 0), (10, "trainer", 0), (10, "trainer", 1)]


def metadata(attempt: int, role: Role, index: int) -> dict[str, Any]:
    name, labels = child_name("math", role, attempt, index), child_labels("math", RUN, role, attempt, index)
    return {"metadata": {"name": name, "namespace": "team", "labels": labels}}


def answer(request: web.Request) -> web.Response:
    """One job, `math`, whose pods are PODS; the rollout's container has not started."""
    if request.path.endswith("/dapojobs/math"):
        return web.json_response({"metadata": {"name": "math"}, "status": {"runId": RUN}})
    if request.path.endswith("/log"):
        if "-trainer-10-0/" in request.path:
            waiting = {"reason": "BadRequest", "message": "the container is waiting to start: ImagePullBackOff"}
            return web.json_response(waiting, status=400)
        return web.Response(text=f"{request.path_qs}\n")
    if request.path.endswith("/pods"):
        of_it = request.query["labelSelector"] in ("dapo.io/job=math", f"dapo.io/run={RUN}")
        items = [metadata(*pod) for pod in PODS] if of_it else []
        return web.json_response({"items": items, "metadata": {"resourceVersion": "7"}})
    return web.json_response({"reason": "NotFound", "message": "not found"}, status=404)


def ask(**fields: Any) -> tuple[ClusterAnswer, str]:
    written: list[str] = []

    async def asked() -> ClusterAnswer:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", asynchronous(answer))
        async with TestServer(app) as server:
            configuration = Configuration(host=str(server.make_url("")).rstrip("/"))
            kube = KubeClient(Connection(configuration))
            try:
                request = LogRequest(**{**DEFAULTS, **fields})
                return await pod_logs.print_pod_log(kube, request, "team", LogPrinter(written.append))
            finally:
                await kube.close()

    return asyncio.run(asked()), "".join(written)


def asynchronous(plain: Callable[[web.Request], web.Response]) -> Any:
    async def handler(request: web.Request) -> web.Response:
        return plain(request)

    return handler


DEFAULTS: dict[str, Any] = {
    "job": "math",
    "namespace": None,
    "attempt": None,
    "role": "head",
    "index": 0,
    "follow": False,
    "tail": None,
}
PATH = "/api/v1/namespaces/team/pods/math-{}/log?container=dapo&follow={}\n"


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({}, PATH.format("head-10-0", "false")),
        ({"job": RUN, "attempt": 2}, PATH.format("head-2-0", "false")),
        ({"role": "trainer", "index": 1, "follow": True}, PATH.format("trainer-10-1", "true")),
        ({"tail": 5}, PATH.format("head-10-0", "false").strip() + "&tailLines=5\n"),
    ],
    ids=["the newest head", "by run and attempt", "followed", "its last lines"],
)
def test_b31_the_log_of_a_pod_that_exists(fields: dict[str, Any], path: str) -> None:
    assert ask(**fields) == (ClusterAnswer(True), path)


@pytest.mark.parametrize(
    ("fields", "run_id", "why"),
    [
        ({"attempt": 9}, RUN, "Namespace team has no such pod of math."),
        ({"role": "trainer"}, RUN, "the container is waiting to start: ImagePullBackOff"),
        ({"job": "other"}, None, "Namespace team has no such pod of other."),
    ],
    ids=["an ended attempt", "not started", "no such job"],
)
def test_b31_the_run_where_there_is_no_log(fields: dict[str, Any], run_id: str | None, why: str) -> None:
    assert ask(**fields) == (ClusterAnswer(False, run_id, why), "")


def test_b31_without_a_cluster_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nowhere() -> Connection:
        raise NoClusterError("Found no service account.")

    monkeypatch.setattr(pod_logs, "connect", nowhere)
    found = pod_logs.print_log(LogRequest(**DEFAULTS), LogPrinter(print))
    assert found == ClusterAnswer(False, None, "Found no service account.")
