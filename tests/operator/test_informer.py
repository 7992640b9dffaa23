"""A list and a watch, through everything the API server may answer."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from kubernetes.aio.client import Configuration
from patience import patient

from dapo_core.backoff import Backoff
from dapo_operator.kube import informer
from dapo_operator.kube.client import KubeClient
from dapo_operator.kube.connection import Connection
from dapo_operator.kube.informer import Informer
from dapo_operator.kube.objects import NODES, PODS, ApiError, GoneError, RefusedError, StreamCutError, UnreachableError


def raw(name: str, version: int) -> dict[str, Any]:
    return {"metadata": {"name": name, "uid": f"uid-{name}", "resourceVersion": str(version)}}


class Script:
    """An API server with scripted responses; after the last one it stays silent."""

    def __init__(self, *watches: Sequence[tuple[str, dict[str, Any]] | ApiError]) -> None:
        self.watches = list(watches)
        self.asked: list[str] = []
        self.lists = 0
        self.done = asyncio.Event()

    async def pages(self, *_: Any) -> AsyncIterator[tuple[list[dict[str, Any]], str]]:
        self.lists += 1
        yield [raw("a", 1)], str(100 * self.lists)
        yield [raw("b", 2)], str(100 * self.lists)

    async def watch(self, resource: Any, namespace: Any, version: str, *_: Any) -> AsyncIterator[Any]:
        self.asked.append(version)
        if not self.watches:
            self.done.set()
            await asyncio.sleep(3600)
        for each in self.watches.pop(0):
            if isinstance(each, ApiError):
                raise each
            yield each


class Heard(list[str]):
    def put(self, raw: dict[str, Any]) -> None:
        self.append(f"+{raw['metadata']['name']}")

    def drop(self, raw: dict[str, Any]) -> None:
        self.append(f"-{raw['metadata']['name']}")

    def keep(self, uids: set[str], namespace: str | None, version: str) -> None:
        self.append(f"={','.join(sorted(uids)).replace('uid-', '')}@{version}")


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(informer, "BACKOFF", Backoff(0.0, 0.0))


def heard(script: Script) -> Heard:
    async def listen() -> Heard:
        sink = Heard()
        task = asyncio.create_task(Informer(script, PODS, None, "", sink).run())  # type: ignore[arg-type]
        async with asyncio.timeout(patient(10)):
            await script.done.wait()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        return sink

    return asyncio.run(listen())


def test_a_list_and_then_news() -> None:
    script = Script([("ADDED", raw("b", 101)), ("BOOKMARK", raw("", 105)), ("DELETED", raw("b", 106))])
    assert heard(script) == ["+a", "+b", "=a,b@100", "+b", "-b"]
    assert script.asked == ["100", "106"], "a stream that ends goes on from where it was"


def test_too_old_a_version_is_listed_again() -> None:
    script = Script([("ADDED", raw("b", 101)), GoneError("too old", 410)])
    assert heard(script) == ["+a", "+b", "=a,b@100", "+b", "+a", "+b", "=a,b@200"]
    assert script.asked == ["100", "200"]


def test_a_broken_stream_goes_on_from_where_it_was() -> None:
    script = Script([("ADDED", raw("b", 101)), UnreachableError("reset")])
    assert heard(script) == ["+a", "+b", "=a,b@100", "+b"]
    assert script.asked == ["100", "101"]


def test_after_some_failures_everything_is_listed() -> None:
    script = Script(*([UnreachableError("refused")] for _ in range(3)))
    assert heard(script) == ["+a", "+b", "=a,b@100", "+a", "+b", "=a,b@200"]


def test_failures_may_go_on_for_hours() -> None:
    script = Script(*([UnreachableError("forbidden")] for _ in range(1100)))
    assert heard(script)[:3] == ["+a", "+b", "=a,b@100"]


@pytest.mark.parametrize("delivered", [[("ADDED", raw("b", 101))], []], ids=["busy", "idle"])
def test_a_proxy_that_cuts_every_stream_makes_nothing_be_listed_again(
    delivered: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []

    def delay(failures: int, chance: float) -> float:
        waits.append(Backoff(1.0, 15.0).delay(failures))
        return 0.0

    monkeypatch.setattr(informer, "BACKOFF", SimpleNamespace(delay=delay))
    script = Script(*[[*delivered, StreamCutError("cut")] for _ in range(20)])
    assert heard(script).count("=a,b@100") == script.lists == 1
    assert waits == [1.0] * 20


def test_a_stream_that_worked_ends_a_row_of_failures() -> None:
    pair: list[Any] = [[UnreachableError("refused")], [("ADDED", raw("b", 101)), UnreachableError("silent")]]
    script = Script(*pair * 10)
    heard(script)
    assert script.lists == 1


def test_a_stream_that_is_cut_differs_from_one_that_cannot_be_opened() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        if request.query["resourceVersion"] == "1":
            return web.json_response({"message": "starting"}, status=503)
        stream = web.StreamResponse()
        await stream.prepare(request)
        await stream.write(json.dumps({"type": "ADDED", "object": raw("a", 3)}).encode() + b"\n")
        assert request.transport is not None
        request.transport.abort()
        return stream

    async def errors() -> list[type[ApiError]]:
        app = web.Application()
        app.router.add_get("/api/v1/pods", answer)
        async with TestServer(app) as server:
            kube = KubeClient(Connection(Configuration(host=str(server.make_url("")).rstrip("/"))))
            try:
                return [await error_of(kube, version) for version in ("1", "2")]
            finally:
                await kube.close()

    async def error_of(kube: KubeClient, version: str) -> type[ApiError]:
        try:
            async for _ in kube.watch(PODS, None, version):
                pass
        except ApiError as error:
            return type(error)
        raise AssertionError("the stream ended cleanly")

    assert asyncio.run(errors()) == [UnreachableError, StreamCutError]


@pytest.mark.parametrize("end", [[], [GoneError("too old", 410)]], ids=["closed", "gone"])
def test_b24_watches_that_end_at_once_are_opened_less_and_less_often(
    end: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    failures: list[int] = []

    def delay(count: int, chance: float) -> float:
        failures.append(count)
        return 0.0

    monkeypatch.setattr(informer, "BACKOFF", SimpleNamespace(delay=delay))
    heard(Script(*[end for _ in range(20)]))
    assert failures[:20] == list(range(20)), "the first one is opened again at once"


def test_b24_a_watch_that_served_for_a_while_is_opened_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    failures: list[int] = []
    monkeypatch.setattr(informer, "BACKOFF", SimpleNamespace(delay=lambda count, _: failures.append(count) or 0.0))
    monkeypatch.setattr(informer, "SHORTEST_SECONDS", 0.0)
    heard(Script(*[[] for _ in range(20)]))
    assert failures == []


class Denied(Script):
    """The first two lists are refused."""

    async def pages(self, *_: Any) -> AsyncIterator[tuple[list[dict[str, Any]], str]]:
        self.lists += 1
        if self.lists <= 2:
            raise RefusedError("nodes is forbidden.", 403)
        yield [raw("a", 1)], "100"


def test_a_watch_without_its_permission_says_once_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(informer, "REFUSED_SECONDS", 0.0)
    script, sink = Denied(), Heard()

    async def listen() -> None:
        missing = "Drains are not noticed."
        watch = Informer(script, NODES, None, "", sink, unless_refused=missing)  # type: ignore[arg-type]
        task = asyncio.create_task(watch.run())
        async with asyncio.timeout(patient(10)):
            await script.done.wait()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    asyncio.run(listen())
    assert caplog.messages == ["May not watch nodes: nodes is forbidden. Drains are not noticed."]
    assert sink == ["+a", "=a@100"]
