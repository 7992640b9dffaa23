"""A driver that waits for a dead engine is interrupted, also where the call it waits in would never return."""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import engines
import pytest
import ray

from dapo_core.errors import DistributedFaultError
from dapo_trainer.verl_adapter.group_router import ServerName

pytestmark = pytest.mark.timeout(120)


def actors() -> tuple[Any, Any]:
    """A server and a worker. Local classes, which Ray sends whole: its processes cannot import this module."""

    class Server:
        """As much of a rollout server as the watch sees."""

        def __init__(self) -> None:
            self.dead = False

        async def outlive_engine(self) -> None:
            while not self.dead:
                await asyncio.sleep(0.05)

        async def lose_engine(self) -> None:
            self.dead = True

    class Worker:
        async def update_weights(self) -> None:
            """Waits for an engine that is no more."""
            await asyncio.sleep(3600)

    return ray.remote(Server), ray.remote(Worker)


@pytest.fixture(scope="module", autouse=True)
def _cluster() -> Iterator[None]:
    engines.load("dapo_trainer.verl_adapter.engine_watch")
    ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown(wait_for_processes=True)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    from dapo_trainer.verl_adapter import engine_watch

    monkeypatch.setattr(engine_watch, "LOOK_SECONDS", 0.1)
    monkeypatch.setattr(engine_watch, "HEAD_START_SECONDS", 0.2)
    actor = actors()[0].options(name="server").remote()
    ray.get(actor.__ray_ready__.remote())
    yield actor
    ray.kill(actor)


def watch() -> Any:
    from dapo_trainer.verl_adapter.engine_watch import EngineWatch

    return EngineWatch([ServerName("server")])


def lose_engine(server: Any) -> None:
    ray.get(server.lose_engine.remote())


@pytest.mark.parametrize(
    ("lose", "said"),
    [(lose_engine, "engine of server died"), (ray.kill, "server server is gone")],
    ids=["its engine dies", "the server's process dies"],
)
def test_a_driver_that_waits_for_ever_is_interrupted(server: Any, lose: Callable[[Any], None], said: str) -> None:
    worker = actors()[1].remote()
    with pytest.raises(DistributedFaultError, match=said), watch():
        waiting = worker.update_weights.remote()
        lose(server)
        ray.get(waiting)


def test_an_interrupt_that_is_swallowed_is_repeated(server: Any) -> None:
    with pytest.raises(DistributedFaultError), watch():
        lose_engine(server)
        for _ in range(2):
            try:
                time.sleep(60)
            except KeyboardInterrupt:
                continue
        time.sleep(60)


@pytest.mark.parametrize("error", [None, ValueError("of its own")], ids=["ends well", "fails by itself"])
def test_a_block_whose_engine_lives_ends_as_it_would(server: Any, error: ValueError | None) -> None:
    with pytest.raises(ValueError, match="of its own") if error else nullcontext(), watch():
        if error:
            raise error
