"""Names of objects that a tenant writes into its jobs, where the operator asks the API server for them."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import unquote

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from fuzzing import TEXT, fuzzed
from hypothesis import given
from hypothesis import strategies as st
from kubernetes.aio.client import Configuration
from planner_bench import START, Bench, raw_job

from dapo_operator.children import Children
from dapo_operator.executor import ActionResult, Executor, Refusals
from dapo_operator.kube.client import KubeClient
from dapo_operator.kube.connection import Connection
from dapo_operator.kube.objects import PODS, RefusedError

ELSEWHERE = ["../../../../../../api/v1/pods", "../../other/workloads/theirs", "..", ".", "a/b", "a%2Fb", "%2e%2e", "/"]


def asked_for(use: Callable[[Executor], Awaitable[Any]]) -> tuple[Any, list[str]]:
    """What comes of using the operator's executor, and the paths that reach the API server, as it reads them. It has
    whatever is asked for."""
    paths: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        paths.append(unquote(request.raw_path))
        return web.json_response({"kind": "PodList", "metadata": {"resourceVersion": "1"}, "items": [], "value": 7})

    async def ask() -> Any:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", answer)
        async with TestServer(app) as server:
            kube = KubeClient(Connection(Configuration(host=str(server.make_url("")).rstrip("/"))))
            try:
                return await use(Executor(kube, Children(lambda key: None)))
            finally:
                await kube.close()

    return asyncio.run(ask()), paths


def act(bench: Bench) -> tuple[ActionResult, list[str]]:
    return asked_for(lambda executor: executor.act(("team", "first"), bench.job, bench.look(), START, Refusals()))


def of_kueue(**policy: str) -> dict[str, Any]:
    return raw_job(runPolicy={"gang": {"scheduler": "kueue", "queue": "research"}, **policy})


@pytest.mark.parametrize("name", ELSEWHERE)
def test_e10_a_prebuilt_workload_is_one_of_the_jobs_namespace(name: str) -> None:
    """An annotation of any text: the operator read the pods of all namespaces, for as long as the job was there."""
    raw = of_kueue()
    raw["metadata"]["annotations"] = {"kueue.x-k8s.io/prebuilt-workload-name": name}
    done, paths = act(Bench(raw))
    assert done.refusal is not None and done.refusal.kind == "permanent"
    assert done.refusal.message == f"{name!r} is not a name: no object can be called that."
    assert all("/namespaces/team/" in path for path in paths)


@pytest.mark.parametrize("name", ELSEWHERE)
def test_e10_a_priority_class_is_one(name: str) -> None:
    done, paths = act(Bench(of_kueue(priorityClassName=name)))
    assert done.refusal is not None and f"{name!r} is not a name" in done.refusal.message
    assert all("/namespaces/team/" in path for path in paths)


@pytest.mark.parametrize("queue", [*ELSEWHERE, "../../../../../../api/v1/pods?x="])
def test_e10_the_position_in_a_queue_is_asked_of_a_queue(queue: str) -> None:
    position, paths = asked_for(lambda executor: executor.positions.of("team", queue, "first-1", START))
    assert (position, paths) == (None, [])


@pytest.mark.parametrize("name", ELSEWHERE)
def test_e10_a_flavor_is_one(name: str) -> None:
    assert asked_for(lambda executor: executor.flavors([name])) == ({}, [])


@given(
    st.one_of(TEXT, st.lists(st.sampled_from(["..", ".", "/", "%2e", "%2F", "a", "?", "#", "\\", ";"])).map("".join))
)
@fuzzed
def test_e10_any_name_is_one_segment_of_a_path_or_refused(name: str) -> None:
    try:
        path = PODS.path("team", name)
    except RefusedError:
        return
    segments = path.removeprefix("/api/v1/namespaces/team/pods").split("/")
    assert [unquote(each) for each in segments] == (["", name.encode(errors="replace").decode()] if name else [""])
    assert not set("?#") & set(path) and segments[-1] not in (".", "..")
