"""Weights from a trainer to rollout workers over a real loopback connection."""

import asyncio
import pickle
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from types import ModuleType
from typing import Any

import engines
import pytest
import torch
import zmq
from patience import patient
from zmq.utils.monitor import parse_monitor_message

BUCKET = 4096


@pytest.fixture
def transport(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = engines.load("dapo_trainer.verl_adapter.tcp_transport")
    monkeypatch.setattr(module.ray.util, "get_node_ip_address", lambda: "127.0.0.1")
    return module


def weights() -> list[tuple[str, torch.Tensor]]:
    """More than fits a bucket: many small tensors, one larger than a bucket, both number formats, odd shapes."""
    chance = torch.Generator().manual_seed(0)
    named: list[tuple[str, torch.Tensor]] = [(f"small.{i}", torch.randn(16, 16, generator=chance)) for i in range(10)]
    named.append(("large", torch.randn(128, 64, generator=chance)))
    named.append(("brain", torch.randn(33, 7, generator=chance).bfloat16()))
    named.append(("scalar", torch.tensor(3.5)))
    named.append(("turned", torch.randn(8, 5, generator=chance).t()))
    named.append(("trained", torch.nn.Parameter(torch.randn(3, generator=chance))))
    return named


def exchange(
    module: ModuleType, named: list[tuple[str, torch.Tensor]], receivers: int
) -> list[dict[str, torch.Tensor]]:
    """One update: the master in a thread of its own, each receiver on an event loop of its own thread."""
    master = module.TcpTransport(BUCKET, is_master=True)
    idle = module.TcpTransport(BUCKET)
    workers = [module.TcpTransport(BUCKET) for _ in range(receivers)]
    metadata = [master.prepare(), idle.prepare(), *(worker.prepare() for worker in workers)]
    trainer, rollout = module.TcpTransport.build_topology(2, receivers, metadata)
    received: list[dict[str, torch.Tensor]] = [{} for _ in workers]
    walked: list[str] = []

    def rows(side: dict[str, list[Any]]) -> list[dict[str, Any]]:
        return [dict(zip(side, values, strict=True)) for values in zip(*side.values(), strict=True)]

    for engine, arguments in zip([master, idle], rows(trainer), strict=True):
        engine.init_process_group(**arguments)

    def walk() -> Iterator[tuple[str, torch.Tensor]]:
        for name, weight in named:
            walked.append(name)
            yield name, weight

    async def take(index: int, arguments: dict[str, Any]) -> None:
        workers[index].init_process_group(**arguments)
        async for name, weight in workers[index].receive_weights(global_steps=1):
            received[index][name] = weight
        workers[index].finalize()

    def give() -> None:
        asyncio.run(master.send_weights(iter(named)))
        asyncio.run(idle.send_weights(walk()))

    errors: list[BaseException] = []

    def guarded(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    parts = [give, *(partial(asyncio.run, take(index, each)) for index, each in enumerate(rows(rollout)))]
    threads = [threading.Thread(target=guarded, args=(part,), daemon=True) for part in parts]
    for thread in threads:
        thread.start()
    threads[0].join(30)
    assert not errors, errors
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    master.finalize()
    idle.finalize()
    assert walked == [name for name, _ in named], "every rank takes part in gathering a sharded tensor"
    return received


@pytest.mark.parametrize("receivers", [1, 2])
def test_weights_arrive_bit_by_bit(transport: ModuleType, receivers: int) -> None:
    named = weights()
    for received in exchange(transport, named, receivers):
        assert list(received) == [name for name, _ in named]
        for name, sent in named:
            assert received[name].dtype == sent.dtype and received[name].shape == sent.shape
            assert torch.equal(received[name], sent.detach())
            received[name] += 1  # what arrives is the receiver's own memory


def test_a_second_update_uses_new_connections(transport: ModuleType) -> None:
    for value in (1.0, 2.0):
        [received] = exchange(transport, [("w", torch.full((4,), value))], 1)
        assert torch.equal(received["w"], torch.full((4,), value))


def test_nothing_to_send(transport: ModuleType) -> None:
    assert exchange(transport, [], 1) == [{}]


@pytest.mark.parametrize(
    ("sizes", "buckets"),
    [
        pytest.param([1000, 1000, 1000], [3], id="all fit"),
        pytest.param([1024, 1024], [1, 1], id="full to the byte, then the next"),
        pytest.param([1, 5000, 1], [1, 1, 1], id="one larger than a bucket travels alone"),
        pytest.param([], [0], id="none"),
    ],
)
def test_buckets(transport: ModuleType, sizes: list[int], buckets: list[int]) -> None:
    named = iter([(str(i), torch.zeros(size)) for i, size in enumerate(sizes)])
    limit = 12_000 if len(sizes) == 3 and sizes[0] == 1000 else BUCKET
    assert [len(bucket) for bucket in transport._buckets(named, limit)] == buckets


def serving(module: ModuleType) -> tuple[Any, Any]:
    """A master that waits for one worker, and where it listens."""
    master = module.TcpTransport(BUCKET, is_master=True)
    trainer, _ = module.TcpTransport.build_topology(1, 1, [master.prepare(), None])
    [listener] = trainer["listener"]
    master.init_process_group(rank=0, peers=1, listener=listener)
    return master, listener


@pytest.mark.parametrize("knows", ["the address", "the key"])
def test_doubt_1_weights_go_to_the_jobs_own_workers_alone(transport: ModuleType, knows: str) -> None:
    """A pod of another job connects first and asks for the weights; the worker that comes later gets them."""
    master, listener = serving(transport)
    sending = threading.Thread(
        target=lambda: asyncio.run(master.send_weights(iter([("w", torch.ones(4))]))), daemon=True
    )
    sending.start()
    stranger: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
    if knows == "the key":
        stranger.curve_serverkey = listener.key
        stranger.curve_publickey, stranger.curve_secretkey = zmq.curve_keypair()
    stranger.connect(listener.address)
    for said in (b"ready", b"", b"x" * 10_000):
        stranger.send(said)

    worker = transport.TcpTransport(BUCKET)

    async def take() -> list[str]:
        worker.init_process_group(rank=-1, peers=1, listener=listener)
        return [name async for name, _ in worker.receive_weights()]

    assert asyncio.run(take()) == ["w"]
    sending.join(patient(30))
    assert not sending.is_alive() and not stranger.poll(0)
    worker.finalize()
    master.finalize()
    stranger.close(linger=0)


def test_doubt_1_whoever_listens_at_the_masters_address_hands_out_nothing(transport: ModuleType) -> None:
    """After a master has ended, its address may be anybody's: what is sent from there is not taken, nor unpickled."""
    master, listener = serving(transport)
    master.finalize()
    impostor: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.ROUTER)
    _, impostor.curve_secretkey = zmq.curve_keypair()
    impostor.curve_server = True
    port = impostor.bind_to_random_port("tcp://127.0.0.1")
    worker = transport.TcpTransport(BUCKET)

    monitor = impostor.get_monitor_socket()
    monitor.rcvtimeo = int(patient(30) * 1000)

    async def take() -> None:
        worker.init_process_group(rank=-1, peers=1, listener=replace(listener, address=f"tcp://127.0.0.1:{port}"))
        waiting = asyncio.create_task(anext(worker.receive_weights()))
        events: list[Any] = []
        while zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL not in events:
            events.append(parse_monitor_message(await asyncio.to_thread(monitor.recv_multipart))["event"])
        assert zmq.EVENT_HANDSHAKE_SUCCEEDED not in events
        waiting.cancel()

    asyncio.run(asyncio.wait_for(take(), patient(30)))
    assert not impostor.poll(0), "the word was not said to it"
    worker.finalize()
    impostor.disable_monitor()
    monitor.close(linger=0)
    impostor.close(linger=0)


def test_doubt_1_a_header_is_no_program(transport: ModuleType) -> None:
    with pytest.raises(ValueError):
        transport._tensors([pickle.dumps([("w", torch.float32, (1,))]), b"1234"])
