"""Weights to engines of which any may die, hang or leave at any point of an update: the others get them."""

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import engines
import pytest
import torch
from faulty_engines import Fault, Remote, Replica, Watch
from patience import patient

from dapo_core.errors import DistributedFaultError
from dapo_trainer.rollouts.membership import WEDGED_AFTER_SECONDS

RANKS = (0, 1, 2)
NAMED = [(f"w{i}", torch.full((64,), float(i))) for i in range(20)]
LIMIT = patient(4.0)  # that the others have to keep
POINTS = (
    "abort_all_requests",
    "release_kv_cache",
    "prepare",
    "init_process_group",
    "update_weights",
    "finalize",
    "resume_kv_cache",
    "resume_generation",
)


class Worker:
    """An engine's worker: the real transport's receiving end."""

    def __init__(self, module: ModuleType, rank: int, fault: Fault, watch: Watch) -> None:
        self._engine, self._rank, self._fault, self._watch = module.TcpTransport(512), rank, fault, watch
        self.received: dict[str, torch.Tensor] = {}
        self.execute_checkpoint_engine, self.update_weights = Remote(self._execute), Remote(self._update)

    async def _execute(self, method: str, **kwargs: Any) -> Any:
        await self._fault.at(method, self._rank, self._watch)
        return getattr(self._engine, method)(**kwargs)

    def end(self) -> None:
        """What the end of the process does."""
        self._engine.finalize()

    async def _update(self, global_steps: int) -> None:
        await self._fault.at("update_weights", self._rank, self._watch)
        async for name, weight in self._engine.receive_weights(global_steps):
            self.received[name] = weight


class Trainer:
    """Two ranks, of which the first serves all weights from a thread of its own, as in the actor's process."""

    world_size = 2

    def __init__(self, module: ModuleType) -> None:
        self._engines = [module.TcpTransport(512, is_master=True), module.TcpTransport(512)]

    def end(self) -> None:
        """What the end of the processes does."""
        for engine in self._engines:
            engine.finalize()

    def execute_checkpoint_engine(self, method: list[str], **columns: list[Any]) -> list[Any]:
        rows = [{name: values[i] for name, values in columns.items()} for i in range(self.world_size)]
        return [
            Remote(self._execute).remote(engine, name, row)
            for engine, name, row in zip(self._engines, method, rows, strict=True)
        ]

    async def _execute(self, engine: Any, method: str, row: dict[str, Any]) -> Any:
        return getattr(engine, method)(**row)

    def update_weights(self, global_steps: int, mode: str) -> list[Any]:
        return [Remote(asyncio.to_thread).remote(_send, engine) for engine in self._engines]


def _send(engine: Any) -> None:
    asyncio.run(engine.send_weights(iter(NAMED)))


STAGES: list["Stage"] = []


@dataclass
class Stage:
    module: ModuleType
    transport: ModuleType
    fault: Fault
    watch: Watch = field(default_factory=Watch)

    def __post_init__(self) -> None:
        made = SimpleNamespace(
            config=SimpleNamespace(backend="dapo_tcp", custom_backend_module=None),
            actor_wg=Trainer(self.transport),
            replicas=[],
        )
        self.sync = self.module.WeightSync(made, self.watch)
        STAGES.append(self)
        self.replicas = [
            Replica(rank, [Worker(self.transport, rank, self.fault, self.watch)], self.fault, self.watch)
            for rank in RANKS
        ]

    def send(self, *ranks: int) -> list[int]:
        have: list[int] = self.sync.send([self.replicas[rank] for rank in ranks], 7)
        return have

    def have_weights(self, rank: int) -> bool:
        received = self.replicas[rank].workers[0].received
        return [*received] == [name for name, _ in NAMED] and all(torch.equal(received[n], w) for n, w in NAMED)


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[ModuleType, ModuleType]]:
    transport = engines.load("dapo_trainer.verl_adapter.tcp_transport")
    module = engines.load("dapo_trainer.verl_adapter.weight_sync")
    monkeypatch.setattr(transport.ray.util, "get_node_ip_address", lambda: "127.0.0.1")
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.02)
    yield module, transport
    for stage in STAGES:
        for replica in stage.replicas:
            replica.workers[0].end()
        stage.sync.actor_wg.end()
    STAGES.clear()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("asyncio_")], "a sender hangs"


@pytest.mark.parametrize("rank", RANKS, ids=["the first", "one between", "the last"])
@pytest.mark.parametrize("kind", ["dies", "is found dead"])
@pytest.mark.parametrize("point", POINTS)
def test_a_death_at_any_point_costs_the_others_nothing(
    modules: tuple[ModuleType, ModuleType], point: str, kind: str, rank: int
) -> None:
    stage = Stage(*modules, Fault(rank, point, kind))
    others = [each for each in RANKS if each != rank]
    assert stage.send(*RANKS) == others
    assert all(stage.have_weights(each) for each in others)
    assert [*stage.watch.lost] == [rank]
    for each in others:
        stage.replicas[each].workers[0].received.clear()
    assert stage.send(*others) == others, "the next update does not know it any more"
    assert all(stage.have_weights(each) for each in others)


def test_one_that_does_not_answer_is_given_up(
    modules: tuple[ModuleType, ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At whatever point. Each update waits for its limit, so they do it side by side."""
    points = ("abort_all_requests", "init_process_group", "update_weights", "resume_generation")
    stages = {point: Stage(*modules, Fault(1, point, "hangs")) for point in points}
    monkeypatch.setattr(modules[0], "CONTROL_SECONDS", LIMIT)
    monkeypatch.setattr(modules[0], "STOP_SECONDS", LIMIT)
    monkeypatch.setattr(modules[0].SyncLimit, "seconds", LIMIT)

    with ThreadPoolExecutor(len(points)) as pool:
        have = dict(zip(points, pool.map(lambda stage: stage.send(*RANKS), stages.values()), strict=True))
    assert have == {point: [0, 2] for point in points}
    for point, stage in stages.items():
        assert "did not answer" in stage.watch.lost[1], point


def test_one_that_is_stopped_as_an_update_begins_is_given_up_as_soon_as_at_any_other_moment(
    modules: tuple[ModuleType, ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert modules[0].STOP_SECONDS == WEDGED_AFTER_SECONDS
    monkeypatch.setattr(modules[0], "STOP_SECONDS", 0.1)
    stage = Stage(*modules, Fault(1, "abort_all_requests", "hangs"))
    begun = time.monotonic()
    assert stage.send(*RANKS) == [0, 2]
    assert time.monotonic() - begun < modules[0].CONTROL_SECONDS


def test_all_of_them_may_die(modules: tuple[ModuleType, ModuleType]) -> None:
    stage = Stage(*modules, Fault(0, "update_weights", "dies"))
    assert stage.send(0) == []
    assert stage.send() == [], "without an engine nothing is sent"
    assert stage.send(1) == [1] and stage.have_weights(1), "and who comes gets them"


def test_an_error_of_the_trainer_is_its_own(modules: tuple[ModuleType, ModuleType]) -> None:
    stage = Stage(*modules, Fault())

    async def fails() -> None:
        raise ValueError("a rank is dead")

    stage.sync.actor_wg.update_weights = lambda **_: [asyncio.ensure_future(fails())]
    with pytest.raises(ValueError, match="a rank is dead"):
        stage.send(*RANKS)
    assert stage.watch.lost == {}, "the engines are not to blame"


def test_a_trainer_that_waits_for_the_dead_ends_the_attempt(
    modules: tuple[ModuleType, ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with NCCL, whose broadcast never returns when a rank is gone."""
    stage = Stage(*modules, Fault(1, "update_weights", "dies"))
    monkeypatch.setattr(modules[0], "END_SECONDS", 0.2)
    stage.sync.actor_wg.update_weights = lambda **_: [asyncio.ensure_future(asyncio.sleep(3600))]
    monkeypatch.setattr(modules[0].SyncLimit, "seconds", 1.0)
    with pytest.raises(DistributedFaultError, match="was lost during the weight update"):
        stage.send(*RANKS)
