"""Groups that are asked for together share the calls to the router and to the engines' servers."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import engines
import pytest

from dapo_trainer.verl_adapter import session
from dapo_trainer.verl_adapter.group_router import GroupRouter, ServerName
from dapo_trainer.verl_adapter.session import Session

SAMPLING = {"temperature": 1.0}


class Method:
    """A method of an actor, called in this process."""

    def __init__(self, call: Callable[..., Any], counts: Counter[str]) -> None:
        self._call, self._counts = call, counts

    def options(self, **_: Any) -> "Method":
        return self

    def remote(self, *args: Any) -> Any:
        self._counts[self._call.__name__] += 1
        return self._call(*args)


class Router:
    """`GroupRouter` behind calls that take a while."""

    def __init__(self, servers: dict[str, Any], counts: Counter[str]) -> None:
        self.real = GroupRouter(servers, {})
        self.acquire_servers, self.release_servers = Method(self._acquire, counts), Method(self._release, counts)

    async def _acquire(self, count: int) -> list[tuple[str, Any]]:
        await asyncio.sleep(0)
        return self.real.acquire_servers(count)

    def _release(self, server: str, count: int) -> None:
        self.real.release_servers(server, count)

    @property
    def in_flight(self) -> list[int]:
        return list(self.real._in_flight.values())


class Server:
    """Answers with the length of the prompt; what `interrupted` names is first returned after one token."""

    def __init__(self, module: ModuleType, counts: Counter[str]) -> None:
        self.module, self.sizes = module, []  # type: tuple[ModuleType, list[int]]
        self.interrupted: set[int] = set()
        self.dies_after: int | None = None
        self.generate_groups = Method(self._generate, counts)

    async def _generate(self, requests: list[Any]) -> AsyncIterator[Any]:
        self.sizes.append(len(requests))
        for place, request in reversed(list(enumerate(requests))):
            if self.dies_after is not None and len(requests) - place > self.dies_after:
                raise ConnectionError("the engine is gone")
            await asyncio.sleep(0)
            yield self._reference([(place, [self._response(prompt) for prompt in request.prompts])])

    async def _reference(self, finished: Any) -> Any:
        return finished

    def _response(self, prompt: list[int]) -> Any:
        if prompt[0] in self.interrupted:
            self.interrupted.remove(prompt[0])
            return self.module.Response([5], [-0.1], False, (3, 3))
        return self.module.Response([len(prompt)], [-0.2], True, (4, 4))


@pytest.fixture
def client_module() -> ModuleType:
    return engines.load("dapo_trainer.verl_adapter.group_client")


@pytest.fixture
def scene(client_module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Two engines' servers, a router, and the client."""
    counts: Counter[str] = Counter()
    monkeypatch.setattr(session, "_current", Session(MagicMock(), {}))
    servers = {name: Server(engines.load("dapo_trainer.verl_adapter.group_server"), counts) for name in "ab"}
    monkeypatch.setattr(client_module, "_actor", lambda name: servers[name.actor])
    monkeypatch.setattr(client_module, "RESUME_PAUSE_SECONDS", 0)
    monkeypatch.setattr(client_module, "NO_SERVER_PAUSE_SECONDS", 0)
    router = Router({name: ServerName(name) for name in servers}, counts)
    client = client_module.GroupClient(config=None, load_balancer_handle=router, only_hybrid=True)
    return SimpleNamespace(counts=counts, servers=servers, router=router, client=client)


def groups(scene: SimpleNamespace, count: int) -> Any:
    """All at once, each with a prompt as long as its number."""

    async def all_of_them() -> Any:
        asked = (scene.client.generate_group([n] * n, 2, 8, SAMPLING) for n in range(1, count + 1))
        return await asyncio.gather(*asked, return_exceptions=True)

    return asyncio.run(all_of_them())


def test_groups_of_a_moment_share_their_calls(scene: SimpleNamespace) -> None:
    answered = groups(scene, 6)
    assert [[r.token_ids for r in group] for group in answered] == [[[n], [n]] for n in range(1, 7)]
    assert [server.sizes for server in scene.servers.values()] == [[3], [3]], "spread over the engines, a call each"
    assert scene.counts["_acquire"] == 1
    assert scene.router.in_flight == [0, 0]


def test_an_interrupted_response_goes_on_where_it_was(scene: SimpleNamespace) -> None:
    scene.servers["a"].interrupted = scene.servers["b"].interrupted = {2}
    one, two = groups(scene, 2)
    assert [r.token_ids for r in one] == [[1], [1]]
    assert sorted((r.token_ids, r.versions) for r in two) == [([2], (4, 4)), ([5, 3], (3, 4))]
    assert scene.router.in_flight == [0, 0]


def test_an_engine_that_dies_fails_its_groups_only(scene: SimpleNamespace) -> None:
    scene.servers["b"].dies_after = 1
    answered = groups(scene, 6)
    failed = [n for n, group in enumerate(answered) if isinstance(group, ConnectionError)]
    assert failed == [1, 3], "of the three groups of that engine the last was finished"
    assert scene.router.in_flight == [0, 0]


def test_groups_wait_for_a_server_where_engines_come_back(scene: SimpleNamespace) -> None:
    taken = dict(scene.router.real._servers)
    scene.router.real.remove_servers(list(taken))

    async def later() -> Any:
        asked = asyncio.ensure_future(scene.client.generate_group([1], 1, 8, SAMPLING))
        while scene.counts["_acquire"] < 3:
            await asyncio.sleep(0)
        scene.router.real.add_servers(taken)
        return await asked

    assert [response.finished for response in asyncio.run(later())] == [True]


def test_without_a_server_that_could_come_back_groups_fail(scene: SimpleNamespace) -> None:
    scene.router.real.remove_servers(["a", "b"])
    scene.client._only_hybrid = False
    assert [str(error) for error in groups(scene, 2)] == ["No available servers in load balancer"] * 2
