"""Weights from trainer to rollout over TCP, for separate pools without CUDA: verl's checkpoint engine `dapo_tcp`.

The master rank serves every rollout worker from one ZeroMQ router, bucket by bucket: [header | tensor bytes ...].
It begins when each has said that it is ready, or the driver that it is lost.
Ray tells the workers the keys of each transfer, so that nobody else's weights are taken and nobody else gets them.
"""

import hmac
import json
import secrets
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import ray
import torch
import zmq
import zmq.asyncio
from verl.checkpoint_engine.base import CheckpointEngine, CheckpointEngineRegistry

from dapo_core.addresses import bracketed, with_port

Named = tuple[str, torch.Tensor]
# What is said to the master, after the word: the rank that is ready, the rank that is lost, whom it waits for.
READY: Final = b"ready"
LOST: Final = b"lost"
WHO: Final = b"who"
REPORT_LINGER_MS: Final = 5000
ANSWER_MS: Final = 2000


def _buckets(weights: Iterator[Named], limit: int) -> Iterator[list[Named]]:
    """Whole tensors grouped up to `limit` bytes; a larger one is sent alone."""
    bucket: list[Named] = []
    size = 0
    for name, weight in weights:
        plain = weight.detach().cpu().contiguous()
        if bucket and size + plain.nbytes > limit:
            yield bucket
            bucket, size = [], 0
        bucket.append((name, plain))
        size += plain.nbytes
    yield bucket


def _frames(bucket: list[Named]) -> list[Any]:
    header = [(name, str(weight.dtype).removeprefix("torch."), list(weight.shape)) for name, weight in bucket]
    return [json.dumps(header).encode(), *(weight.reshape(-1).view(torch.uint8).numpy().data for _, weight in bucket)]


def _tensors(frames: list[Any]) -> list[Named]:
    header = json.loads(frames[0])
    return [
        (name, torch.frombuffer(bytearray(raw), dtype=getattr(torch, dtype)).view(shape))
        for (name, dtype, shape), raw in zip(header, frames[1:], strict=True)
    ]


@dataclass(frozen=True)
class Listener:
    """Where the master listens: its address, the key of its encryption (CURVE), and the word that a worker says."""

    address: str
    key: bytes = field(repr=False)
    word: bytes = field(repr=False)


def _connect(context: Any, listener: Listener) -> Any:
    socket: Any = context.socket(zmq.DEALER)
    socket.curve_serverkey = listener.key
    socket.curve_publickey, socket.curve_secretkey = zmq.curve_keypair()
    socket.ipv6 = "[" in listener.address
    socket.connect(listener.address)
    return socket


def _name(rank: int) -> bytes:
    return str(rank).encode()


def report_lost(listener: Listener, ranks: Iterable[int]) -> None:
    """Tell the master not to wait for these rollout workers. Without effect when it is done."""
    socket = _connect(zmq.Context.instance(), listener)
    for rank in ranks:
        socket.send_multipart([listener.word, LOST, _name(rank)])
    socket.close(linger=REPORT_LINGER_MS)


def not_ready(listener: Listener) -> set[int]:
    """The rollout workers that the master waits for; none when it waits for none any more."""
    socket = _connect(zmq.Context.instance(), listener)
    socket.send_multipart([listener.word, WHO, b""])
    ranks = socket.recv_multipart() if socket.poll(ANSWER_MS) else []
    socket.close(linger=0)
    return set(map(int, ranks))


@CheckpointEngineRegistry.register("dapo_tcp")
class TcpTransport(CheckpointEngine):
    """Trainer ranks count from 0, rollout workers from -1 downwards (verl's convention for its engines)."""

    def __init__(self, bucket_size: int, is_master: bool = False, **_: Any) -> None:
        self.bucket_size, self.is_master = bucket_size, is_master
        self.socket: Any = None
        self.rank = self.peers = 0
        self.word = b""

    def prepare(self) -> Listener | None:
        """Where rollout workers connect; only the master rank listens."""
        if not self.is_master:
            return None
        self.socket = zmq.Context.instance().socket(zmq.ROUTER)
        key, self.socket.curve_secretkey = zmq.curve_keypair()
        self.socket.curve_server = True
        host = ray.util.get_node_ip_address()
        self.socket.ipv6 = ":" in host
        port = self.socket.bind_to_random_port(f"tcp://{bracketed(host)}")
        address = f"tcp://{with_port(host, port)}"
        return Listener(address, key, secrets.token_bytes(32))

    @classmethod
    def build_topology(
        cls, actor_wg_world_size: int, rollout_world_size: int, metadata: list[Listener | None]
    ) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
        def side(ranks: list[int]) -> dict[str, list[Any]]:
            return {"rank": ranks, "peers": [rollout_world_size] * len(ranks), "listener": [metadata[0]] * len(ranks)}

        return side(list(range(actor_wg_world_size))), side([-1 - i for i in range(rollout_world_size)])

    def init_process_group(self, rank: int, peers: int, listener: Listener) -> None:
        self.rank, self.peers, self.word = rank, peers, listener.word
        if rank < 0:
            self.socket = _connect(zmq.asyncio.Context.instance(), listener)

    def finalize(self) -> None:
        if self.socket is not None:
            self.socket.close(linger=1000)
            self.socket = None

    @torch.no_grad()
    async def send_weights(self, weights: Iterator[Named], global_steps: int | None = None) -> None:
        if not self.is_master:
            for _ in weights:  # gathering a sharded tensor is collective: every rank walks the whole model
                pass
            return
        peers = self._ready_peers()
        for bucket in _buckets(weights, self.bucket_size):
            frames = _frames(bucket)
            for peer in peers:
                self.socket.send_multipart([peer, *frames])
        for peer in peers:
            self.socket.send_multipart([peer, b""])

    def _ready_peers(self) -> list[bytes]:
        """The connections of the peers that are ready, when the others are known to be lost. Those that are lost later
        are no obstacle: what is sent to them is dropped."""
        ready: dict[bytes, bytes] = {}
        lost: set[bytes] = set()
        while waiting := [rank for rank in map(_name, range(-self.peers, 0)) if rank not in ready and rank not in lost]:
            peer, *said = self.socket.recv_multipart()
            if len(said) != 3 or not hmac.compare_digest(said[0], self.word):
                continue
            _, what, rank = said
            if what == WHO:
                self.socket.send_multipart([peer, *waiting])
            elif what == LOST:
                lost.add(rank)
            else:
                ready[rank] = peer
        return [peer for rank, peer in ready.items() if rank not in lost]

    async def receive_weights(self, global_steps: int | None = None) -> AsyncIterator[Named]:
        await self.socket.send_multipart([self.word, READY, _name(self.rank)])
        while (frames := await self.socket.recv_multipart())[0]:
            for named in _tensors(frames):
                yield named
