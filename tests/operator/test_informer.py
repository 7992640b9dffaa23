"""A list and a watch, through everything the API server may answer."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from patience import patient

from dapo_operator.kube import informer
from dapo_operator.kube.errors import ApiError, GoneError, UnreachableError
from dapo_operator.kube.informer import Informer
from dapo_operator.kube.resources import PODS


def raw(name: str, version: int) -> dict[str, Any]:
    return {"metadata": {"name": name, "uid": f"uid-{name}", "resourceVersion": str(version)}}


class Script:
    """An API server that answers what it is told to; then it is silent."""

    def __init__(self, *watches: list[tuple[str, dict[str, Any]] | ApiError]) -> None:
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
    monkeypatch.setattr(informer, "BACKOFF_SECONDS", 0.0)


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
    script = Script(*[[UnreachableError("refused")] for _ in range(3)])
    assert heard(script) == ["+a", "+b", "=a,b@100", "+a", "+b", "=a,b@200"]
