"""Weights from the trainer to engines of which any may be lost on the way: what verl's manager does, engine by engine.

verl waits for all engines together, so that one that dies or stops answering holds up the trainer for ever.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from verl.checkpoint_engine import CheckpointEngineManager
from verl.utils.ray_utils import auto_await

from dapo_core.errors import DistributedFaultError
from dapo_trainer.rollouts.membership import WEDGED_AFTER_SECONDS, SyncLimit
from dapo_trainer.verl_adapter import tcp_transport

LOOK_SECONDS: Final = 0.5
# For an engine to make room, to prepare and to go on.
CONTROL_SECONDS: Final = 180.0
# For it to stop what it generates, which takes up to a minute where requests are on their way to it. One that does not
# is as wedged as one that generates nothing between two updates.
STOP_SECONDS: Final = WEDGED_AFTER_SECONDS
# For the trainer's side once all engines are done. With NCCL also for all of them once one was lost in the middle: they
# may be past it, but mostly wait for it for ever.
END_SECONDS: Final = 120.0
TCP: Final = "dapo_tcp"
LOST_IN_GROUP: Final = "The trainer's ranks wait for a rollout engine that was lost during the weight update."


class Replica(Protocol):
    """What is used of verl's RolloutReplica."""

    replica_rank: int
    workers: list[Any]

    async def abort_all_requests(self) -> Any: ...
    async def release_kv_cache(self) -> None: ...
    async def resume_kv_cache(self) -> None: ...
    async def resume_generation(self) -> None: ...


class Engines(Protocol):
    """Who the engines are, as the thread that watches them knows it."""

    def takes_weights(self, rank: int) -> bool: ...

    def lose(self, rank: int, why: str) -> None: ...


class WeightSync(CheckpointEngineManager):
    """Takes the place of the manager that verl made. `version`: of the weights that were sent last."""

    def __init__(self, made: CheckpointEngineManager, engines: Engines) -> None:
        super().__init__(made.config, made.actor_wg, made.replicas)
        self._engines, self._limit = engines, SyncLimit()
        self.version: int | None = None

    @auto_await
    async def send(self, replicas: Sequence[Replica], step: int | None) -> list[int]:
        """Send the trainer's weights to `replicas`. Returns the ranks of those that have them and generate again.

        Raises what the trainer's ranks raise, and DistributedFaultError when they cannot end without an engine that
        was lost (NCCL).
        """
        self.version = step
        left = await self._each(replicas, lambda replica: replica.abort_all_requests(), STOP_SECONDS)
        left = await self._each(left, lambda replica: replica.release_kv_cache(), CONTROL_SECONDS)
        if left:
            begun = time.monotonic()
            left = await self._transfer(left, step)
            self._limit.took(time.monotonic() - begun)
        left = await self._each(left, lambda replica: replica.resume_kv_cache(), CONTROL_SECONDS)
        left = await self._each(left, lambda replica: replica.resume_generation(), CONTROL_SECONDS)
        return [replica.replica_rank for replica in left]

    async def _transfer(self, replicas: Sequence[Replica], step: int | None) -> list[Replica]:
        trainer = self.actor_wg
        metadata = list(await asyncio.gather(*self._on_trainer(["prepare"] * trainer.world_size)))
        prepared: dict[int, list[Any]] = {}

        async def prepare(replica: Replica) -> None:
            prepared[replica.replica_rank] = await _on_workers(replica, [{"method": "prepare"}] * len(replica.workers))

        left = await self._each(replicas, prepare, CONTROL_SECONDS)
        workers = sum(len(replica.workers) for replica in left)
        if left:
            metadata += [one for replica in left for one in prepared[replica.replica_rank]]
            trainer_side, rollout_side = self.backend_cls.build_topology(trainer.world_size, workers, metadata)
            left = await self._send(left, trainer_side, rollout_side, metadata[0], step)
        elif self.backend != TCP:
            # verl's engine leaves only what it was told its place in; -1 is that of a rank outside the group.
            side, _ = self.backend_cls.build_topology(trainer.world_size, 0, metadata)
            await asyncio.gather(*self._trainer_joins({**side, "rank": [-1] * trainer.world_size}))
        return await self._leave(left)

    async def _leave(self, replicas: Sequence[Replica]) -> list[Replica]:
        """Both sides at once, as in verl: in NCCL a rank that leaves waits for those of its node."""
        trainer = asyncio.gather(*self._on_trainer(["finalize"] * self.actor_wg.world_size))

        async def leave(replica: Replica) -> None:
            await _on_workers(replica, [{"method": "finalize"}] * len(replica.workers))

        left = await self._each(replicas, leave, CONTROL_SECONDS)
        try:
            await asyncio.wait_for(trainer, END_SECONDS)
        except TimeoutError as error:
            raise DistributedFaultError(LOST_IN_GROUP) from error
        return left

    async def _send(
        self,
        replicas: Sequence[Replica],
        trainer_side: Mapping[str, list[Any]],
        rollout_side: Mapping[str, list[Any]],
        listener: Any,
        step: int | None,
    ) -> list[Replica]:
        """Join the group and receive: each engine by itself, beside the trainer's ranks."""
        places, ranks, begin = {}, {}, 0
        for replica in replicas:
            end = begin + len(replica.workers)
            rows = [{key: values[i] for key, values in rollout_side.items()} for i in range(begin, end)]
            places[replica.replica_rank] = rows
            ranks[replica.replica_rank] = [row["rank"] for row in rows]
            begin = end

        async def receive(replica: Replica) -> None:
            joins = [{"method": "init_process_group", **row} for row in places[replica.replica_rank]]
            await _on_workers(replica, joins)
            await asyncio.gather(*(worker.update_weights.remote(global_steps=step) for worker in replica.workers))

        def to_blame(late: list[Replica]) -> list[Replica]:
            """All wait until the last one is ready: only those that are not hold up the others."""
            missing = tcp_transport.not_ready(listener) if self.backend == TCP else set()
            blamed = [replica for replica in late if missing.intersection(ranks[replica.replica_rank])]
            return blamed or late

        def without(replica: Replica) -> None:
            if self.backend == TCP:
                tcp_transport.report_lost(listener, ranks[replica.replica_rank])
            elif limit.when() is None:
                limit.reschedule(asyncio.get_running_loop().time() + END_SECONDS)

        sending = asyncio.ensure_future(self._trainer_sends(trainer_side, step))
        receiving = asyncio.ensure_future(self._each(replicas, receive, self._limit.seconds, without, to_blame))
        try:
            async with asyncio.timeout(None) as limit:
                await asyncio.wait({sending, receiving}, return_when=asyncio.FIRST_COMPLETED)
                if sending.done():
                    sending.result()
                left = await receiving
                await asyncio.wait_for(sending, END_SECONDS)
        except TimeoutError as error:
            raise DistributedFaultError(LOST_IN_GROUP) from error
        finally:
            sending.cancel()
            receiving.cancel()
        return left

    async def _trainer_sends(self, side: Mapping[str, list[Any]], step: int | None) -> None:
        await asyncio.gather(*self._trainer_joins(side))
        await asyncio.gather(*self.actor_wg.update_weights(global_steps=step, mode=self.backend))

    def _trainer_joins(self, side: Mapping[str, list[Any]]) -> list[Any]:
        joins = ["init_process_group"] * self.actor_wg.world_size
        refs: list[Any] = self.actor_wg.execute_checkpoint_engine(**side, method=joins)
        return refs

    def _on_trainer(self, methods: list[str]) -> list[Any]:
        refs: list[Any] = self.actor_wg.execute_checkpoint_engine(methods)
        return refs

    async def _each(
        self,
        replicas: Sequence[Replica],
        call: Callable[[Replica], Awaitable[Any]],
        limit_seconds: float,
        lost: Callable[[Replica], None] = lambda _: None,
        to_blame: Callable[[list[Replica]], list[Replica]] = lambda late: late,
    ) -> list[Replica]:
        """Returns those replicas whose call succeeded. The others are lost: `lost` was called for each, as soon as its
        call failed, took longer than the limit, or the replica was found lost by somebody else. Of those that are late
        together, `to_blame` chooses the ones that are lost; the others have the limit again."""
        calls = {asyncio.ensure_future(_call(call, replica)): replica for replica in replicas}
        pending, left, deadline = set(calls), [], time.monotonic() + limit_seconds
        while pending:
            done, pending = await asyncio.wait(pending, timeout=LOOK_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if pending and time.monotonic() > deadline:
                deadline = time.monotonic() + limit_seconds
                for replica in to_blame([calls[task] for task in pending]):
                    why = f"it did not answer for {limit_seconds:.0f} s in a weight update"
                    self._engines.lose(replica.replica_rank, why)
            for task in [*done, *pending]:
                replica = calls[task]
                error = task.exception() if task in done else None
                if error is not None:
                    self._engines.lose(replica.replica_rank, f"it failed in a weight update ({type(error).__name__})")
                if error is not None or not self._engines.takes_weights(replica.replica_rank):
                    task.cancel()
                    pending.discard(task)
                    lost(replica)
                elif task in done:
                    left.append(replica)
        return [replica for replica in replicas if replica in left]


async def _call(call: Callable[[Replica], Awaitable[Any]], replica: Replica) -> None:
    await call(replica)


async def _on_workers(replica: Replica, arguments: Sequence[Mapping[str, Any]]) -> list[Any]:
    refs = [
        worker.execute_checkpoint_engine.remote(**each) for worker, each in zip(replica.workers, arguments, strict=True)
    ]
    return list(await asyncio.gather(*refs))
