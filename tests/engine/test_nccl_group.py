"""verl's NCCL engine under our weight update, without a GPU: groups that are rebuilt as engines die and join.

The engine's code runs as it is, a copy of its module for each process, with NCCL's collectives among threads. The
stand-in is as strict as NCCL: whoever joins or leaves waits for all members, and broadcasts must match in length.
"""

import asyncio
import importlib.util
import queue
import sys
import threading
from collections.abc import Callable, Iterator
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

NCCL = "verl.checkpoint_engine.nccl_checkpoint_engine"
BUCKET = 512
SENDERS = 2  # the trainer's ranks are on one node: the second relays
STUCK = patient(30.0)


def weights(step: int) -> list[tuple[str, torch.Tensor]]:
    """Some to a bucket, and one that takes several."""
    return [(f"w{i}", torch.full((64,), 100.0 * step + i)) for i in range(7)] + [("wide", torch.arange(300.0) + step)]


class Group:
    def __init__(self, size: int) -> None:
        self.size, self.ranks, self.payload = size, set[int](), torch.empty(0)
        self.all = threading.Barrier(size)


@dataclass
class Fabric:
    """NCCL and verl's channel of metadata, among the threads of this process."""

    formed: list[Group] = field(default_factory=list)
    channels: list["queue.Queue[Any]"] = field(default_factory=list)
    threads: list[ThreadPoolExecutor] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def join(self, size: int, rank: int) -> Group:
        with self.lock:
            if not self.formed or len(self.formed[-1].ranks) == self.formed[-1].size:
                self.formed.append(Group(size))
            group = self.formed[-1]
            assert (group.size, rank in group.ranks) == (size, False), "two that do not belong together"
            group.ranks.add(rank)
        group.all.wait(STUCK)
        return group

    def end(self) -> None:
        for group in self.formed:
            group.all.abort()
        for channel in self.channels:
            channel.put(None)
        for thread in self.threads:
            thread.shutdown(wait=False)


class Collective:
    """ray.util.collective in one process."""

    def __init__(self, fabric: Fabric) -> None:
        self._fabric, self._rank = fabric, -1
        self._group: Group | None = None

    def init_collective_group(self, world_size: int, rank: int, backend: str, group_name: str) -> None:
        assert self._group is None, "as Ray refuses a second group of a name"
        self._group, self._rank = self._fabric.join(world_size, rank), rank

    def destroy_collective_group(self, group_name: str) -> None:
        self.barrier(group_name)  # ncclCommDestroy waits for the ranks of its node
        self._group = None

    def barrier(self, group_name: str) -> None:
        assert self._group is not None
        self._group.all.wait(STUCK)

    def broadcast(self, tensor: torch.Tensor, src_rank: int, group_name: str) -> None:
        assert self._group is not None
        if self._rank == src_rank:
            self._group.payload = tensor.clone()
        self._group.all.wait(STUCK)
        tensor.copy_(self._group.payload)
        self._group.all.wait(STUCK)


class Channel:
    """verl's ZeroMQ socket: of the first rank, or of one that listens to it."""

    def __init__(self, fabric: Fabric) -> None:
        self._fabric, self._heard = fabric, queue.Queue[Any]()

    def listen(self) -> None:
        self._fabric.channels.append(self._heard)

    def send_string(self, text: str, flags: int) -> None:
        pass

    def send_pyobj(self, value: Any) -> None:
        for channel in self._fabric.channels:
            channel.put(value)

    def recv_string(self) -> None:
        pass

    def recv_pyobj(self) -> Any:
        return self._heard.get(timeout=STUCK)


class Process:
    """One that has verl's engine, and a thread that its calls are made in."""

    def __init__(self, fabric: Fabric, *, is_master: bool = False) -> None:
        module = _copy_of_engine(fabric)
        self.engine = module.NCCLCheckpointEngine(BUCKET, rebuild_group=True, is_master=is_master)
        self._thread = ThreadPoolExecutor(1)
        fabric.threads.append(self._thread)

    async def call(self, method: Callable[..., Any], **kwargs: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._thread, lambda: method(**kwargs))

    async def execute(self, method: str, **kwargs: Any) -> Any:
        return await self.call(getattr(self.engine, method), **kwargs)


def _copy_of_engine(fabric: Fabric) -> Any:
    sys.modules.pop(NCCL, None)
    spec = importlib.util.find_spec(NCCL)
    assert spec is not None and spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    sys.modules[NCCL] = module  # where its dataclasses look for themselves
    spec.loader.exec_module(module)
    nothing = SimpleNamespace(synchronize=lambda: None, empty_cache=lambda: None)
    module.torch = SimpleNamespace(
        uint8=torch.uint8, cuda=nothing, zeros=lambda size, dtype, device: torch.zeros(size, dtype=dtype)
    )
    module.collective = Collective(fabric)
    engine = module.NCCLCheckpointEngine
    engine.get_node_id = staticmethod(lambda: "one node")

    def serves(self: Any) -> None:
        self.ip, self.listen_port, self.socket = "127.0.0.1", 1, Channel(fabric)

    def connects(self: Any, _: Any) -> None:
        self.socket = Channel(fabric)
        self.socket.listen()

    engine._start_zmq_server, engine._connect_zmq_client = serves, connects
    return module


class Worker:
    def __init__(self, fabric: Fabric, rank: int, fault: Fault, watch: Watch) -> None:
        self._process, self._rank, self._fault, self._watch = Process(fabric), rank, fault, watch
        self.received: dict[str, torch.Tensor] = {}
        self.execute_checkpoint_engine, self.update_weights = Remote(self._execute), Remote(self._update)

    async def _execute(self, method: str, **kwargs: Any) -> Any:
        await self._fault.at(method, self._rank, self._watch)
        return await self._process.execute(method, **kwargs)

    async def _update(self, global_steps: int) -> None:
        await self._fault.at("update_weights", self._rank, self._watch)
        self.received = {
            name: weight.clone() async for name, weight in self._process.engine.receive_weights(global_steps)
        }


class Trainer:
    world_size = SENDERS

    def __init__(self, fabric: Fabric) -> None:
        self.processes = [Process(fabric, is_master=rank == 0) for rank in range(SENDERS)]

    def execute_checkpoint_engine(self, method: list[str], **columns: list[Any]) -> list[Any]:
        return [
            Remote(process.execute).remote(method[i], **{name: values[i] for name, values in columns.items()})
            for i, process in enumerate(self.processes)
        ]

    def update_weights(self, global_steps: int, mode: str) -> list[Any]:
        def send(engine: Any) -> None:
            asyncio.run(engine.send_weights(iter(weights(global_steps))))

        return [Remote(each.call).remote(send, engine=each.engine) for each in self.processes]


class Stage:
    def __init__(self, module: ModuleType, fault: Fault) -> None:
        self.fabric, self.watch, self._fault = Fabric(), Watch(), fault
        made = SimpleNamespace(
            config=SimpleNamespace(backend="nccl", custom_backend_module=None),
            actor_wg=Trainer(self.fabric),
            replicas=[],
        )
        self.sync = module.WeightSync(made, self.watch)
        self.replicas: dict[int, Replica] = {}

    def send(self, step: int, *ranks: int) -> list[int]:
        """To engines of which those that are new have joined."""
        for rank in ranks:
            if rank not in self.replicas:
                worker = Worker(self.fabric, rank, self._fault, self.watch)
                self.replicas[rank] = Replica(rank, [worker], self._fault, self.watch)
        self.fabric.channels.clear()
        have: list[int] = self.sync.send([self.replicas[rank] for rank in ranks], step)
        return have

    def have(self, step: int, *ranks: int) -> bool:
        wanted = weights(step)
        received = [self.replicas[rank].workers[0].received for rank in ranks]
        return all(
            [*one] == [n for n, _ in wanted] and all(torch.equal(one[n], w) for n, w in wanted) for one in received
        )

    @property
    def sizes(self) -> list[int]:
        """Of the groups so far: how many engines each had."""
        assert all(group.ranks == set(range(group.size)) for group in self.fabric.formed)
        return [group.size - SENDERS for group in self.fabric.formed]


@pytest.fixture
def staged(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Fault], Stage]]:
    module = engines.load("dapo_trainer.verl_adapter.weight_sync")
    engines.load("ray.util.collective")
    registry = importlib.import_module("verl.checkpoint_engine.base").CheckpointEngineRegistry
    monkeypatch.setitem(registry._registry, "nccl", None)  # this and the next are as before afterwards
    monkeypatch.setitem(sys.modules, NCCL, ModuleType(NCCL))
    cupy: Any = ModuleType("cupy")
    cupy.ndarray, cupy.uint8, cupy.zeros, cupy.asarray = torch.Tensor, torch.uint8, torch.zeros, lambda tensor: tensor
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.02)
    stages: list[Stage] = []

    def stage(fault: Fault) -> Stage:
        stages.append(Stage(module, fault))
        return stages[-1]

    yield stage
    for each in stages:
        each.fabric.end()


@pytest.mark.parametrize("rank", [0, 1, 2], ids=["the first", "one between", "the last"])
@pytest.mark.parametrize(
    ("point", "first"),
    [("release_kv_cache", 2), ("prepare", 2), ("resume_generation", 3)],
    ids=lambda value: str(value),
)
def test_the_next_group_is_without_the_dead_and_with_who_joins(
    staged: Callable[[Fault], Stage], point: str, first: int, rank: int
) -> None:
    stage = staged(Fault(rank, point, "dies"))
    others = [each for each in range(3) if each != rank]
    assert stage.send(1, 0, 1, 2) == others and stage.have(1, *others)
    assert [*stage.watch.lost] == [rank]
    assert stage.send(2, *others) == others and stage.have(2, *others)
    assert stage.send(3, *others, 3) == [*others, 3] and stage.have(3, *others, 3)
    assert stage.sizes == [first, 2, 3]


def test_without_an_engine_no_group_is_formed(staged: Callable[[Fault], Stage]) -> None:
    """The trainer leaves what it has not joined, as its first update and as a later one."""
    fault = Fault(0, "prepare", "dies")
    stage = staged(fault)
    assert stage.send(1, 0) == [] and stage.sizes == []
    assert stage.send(2, 1) == [1] and stage.have(2, 1)
    fault.rank = 1
    assert stage.send(3, 1) == [] and stage.send(4, 2) == [2] and stage.have(4, 2)
    assert [*stage.watch.lost] == [0, 1]
    assert stage.sizes == [1, 1]


def test_a_death_in_a_group_is_not_waited_for_as_long_as_an_update_may_take(
    staged: Callable[[Fault], Stage], monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = staged(Fault(1, "init_process_group", "dies"))
    monkeypatch.setattr(sys.modules["dapo_trainer.verl_adapter.weight_sync"], "END_SECONDS", 0.2)
    with pytest.raises(DistributedFaultError, match="was lost during the weight update"):
        stage.send(1, 0, 1, 2)
    assert [*stage.watch.lost] == [1], "those that wait for it are not to blame"
