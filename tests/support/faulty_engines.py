"""Engines of a weight update, in this process, that die, hang or are found dead at a point of it."""

import asyncio
from dataclasses import dataclass, field
from typing import Any


class Died(Exception):
    """As Ray tells of an actor's death."""


@dataclass
class Watch:
    """Who is lost, as the thread that watches the engines knows it."""

    lost: dict[int, str] = field(default_factory=dict)

    def takes_weights(self, rank: int) -> bool:
        return rank not in self.lost

    def lose(self, rank: int, why: str) -> None:
        self.lost.setdefault(rank, why)


@dataclass
class Fault:
    """What befalls the engine of a rank at a point: an error, or no answer, of which the watching thread may tell."""

    rank: int = -1
    point: str = ""
    kind: str = ""

    async def at(self, point: str, rank: int, watch: Watch) -> None:
        if (rank, point) != (self.rank, self.point):
            return
        if self.kind == "dies":
            raise Died
        if self.kind == "is found dead":
            watch.lose(rank, "found dead")
        await asyncio.sleep(3600)


class Remote:
    """`method.remote(...)` of a Ray actor, here a coroutine of this process."""

    def __init__(self, call: Any) -> None:
        self._call = call

    def remote(self, *args: Any, **kwargs: Any) -> Any:
        return asyncio.ensure_future(self._call(*args, **kwargs))


@dataclass
class Replica:
    """verl's, whose calls succeed unless its fault is there."""

    replica_rank: int
    workers: list[Any]
    fault: Fault
    watch: Watch

    def __getattr__(self, name: str) -> Any:
        async def call() -> None:
            await self.fault.at(name, self.replica_rank, self.watch)

        return call
