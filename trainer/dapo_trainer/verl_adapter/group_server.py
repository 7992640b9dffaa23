"""vLLM served by groups: one call generates all responses to some prompts.

verl requests each response separately and has vLLM report every token of it. The responses of a group share the prompt
and are used together, so this server generates the group, reports once at its end, and leaves decoding to the scorer.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import ray
from ray.util import placement_group, remove_placement_group
from verl.plugin.platform import get_platform
from verl.single_controller.ray import RayResourcePool, RayWorkerGroup
from verl.utils.device import get_device_name
from verl.workers.rollout.replica import RolloutMode, RolloutReplicaRegistry
from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer, vLLMReplica
from vllm.inputs.engine import tokens_input
from vllm.sampling_params import RequestOutputKind

from dapo_core.errors import DistributedFaultError
from dapo_trainer.verl_adapter.engine_processes import EngineProcess
from dapo_trainer.verl_adapter.group_router import ServerName

ENGINE_LOOK_SECONDS = 0.5
LOOK_SECONDS = 1.0
# Of the resource that each node has as its name: any number of engines fit.
NODE_SHARE = 1e-4


@dataclass
class Response:
    """`log_probs`: of each token under the policy that sampled it; `versions`: oldest and newest weights used."""

    token_ids: list[int]
    log_probs: list[float]
    finished: bool
    versions: tuple[int, int]


@dataclass(frozen=True)
class GroupRequest:
    """Token ids to continue, each with how many tokens at most; `sampling` is for all of them, by vLLM's names."""

    prompts: Sequence[list[int]]
    budgets: Sequence[int]
    sampling: dict[str, Any]


# By the places of their requests in a call.
FinishedGroups = list[tuple[int, list[Response]]]


def rendered(prompt: Any) -> Any:
    """As vLLM's renderer returns a prompt of token ids; one of images or text as it is.

    vLLM has another thread render what is not, because that may block. For token ids there is nothing to do, and the
    way to the thread and back, with its waits for Python's lock, takes longer than all else until a request is in the
    engine.
    """
    if any(value for name, value in prompt.items() if name != "prompt_token_ids"):
        return prompt
    return tokens_input(prompt["prompt_token_ids"])


class AnnouncingEngine:
    """A vLLM engine whose `generate` says so when a request is in the engine; everything else is the engine's own.

    verl takes a request for admitted at its first output. That of a request that reports once is its last: each weight
    update would wait for all that is generated, up to a minute, before it aborts the rest.
    """

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self.ended = 0  # requests

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def generate(
        self, prompt: Any, sampling_params: Any, request_id: str, **options: Any
    ) -> AsyncIterator[Any | None]:
        """None once the engine has the request, then its outputs."""
        outputs = await self._engine.add_request(request_id, rendered(prompt), sampling_params, **options)
        finished = False
        try:
            yield None
            while not finished:
                output = outputs.get_nowait() or await outputs.get()
                finished = output.finished
                yield output
        finally:
            self.ended += 1
            if not finished:
                await self._engine.abort(outputs.request_id, internal=True)
            outputs.close()


class GroupServer(vLLMHttpServer):
    engine: Any

    async def launch_server(self, *args: Any, **kwargs: Any) -> None:
        await super().launch_server(*args, **kwargs)
        if self.node_rank == 0:
            self.engine = AnnouncingEngine(self.engine)
        if ready := os.environ.get("DAPO_READY_FILE"):
            Path(ready).touch()  # what a rollout pod's readiness probe checks

    async def outlive_engine(self) -> None:
        """Return when the engine's process has died."""
        while not self.engine.errored:
            await asyncio.sleep(ENGINE_LOOK_SECONDS)

    def processes(self) -> list[EngineProcess]:
        """The engine's processes, which outlive this one when it is killed."""
        manager = self.engine.engine_core.resources.engine_manager
        return [EngineProcess.of(process.pid) for process in manager.processes]

    async def progress(self) -> int:
        """A number that changes while the engine answers: tokens that it has reported of its open requests, and ended
        requests."""
        states = list(self.engine.output_processor.request_states.values())
        return int(self.engine.ended) + sum(int(state.detokenizer.num_output_tokens()) for state in states)

    async def probe(self) -> None:
        """Return when the engine has generated a token, which a paused one does not."""
        await self.generate([0], {"max_tokens": 1, **_SETTINGS}, request_id=f"probe-{uuid4().hex}")

    async def generate_groups(self, requests: Sequence[GroupRequest]) -> AsyncIterator[FinishedGroups]:
        """The groups as they finish, those that finish together at once; aborted responses are returned unfinished."""
        groups = [asyncio.ensure_future(self._generate(request)) for request in requests]
        places = {group: place for place, group in enumerate(groups)}
        try:
            while places:
                done, _ = await asyncio.wait(places, return_when=asyncio.FIRST_COMPLETED)
                yield [(places.pop(group), group.result()) for group in done]
        finally:
            for group in places:
                group.cancel()

    async def _generate(self, request: GroupRequest) -> list[Response]:
        calls = [
            self.generate(prompt, {**request.sampling, "max_tokens": budget, **_SETTINGS}, request_id=uuid4().hex)
            for prompt, budget in zip(request.prompts, request.budgets, strict=True)
        ]
        outputs = await asyncio.gather(*calls)
        version = int(self.global_steps or 0)
        return [
            Response(list(out.token_ids), list(out.log_probs or ()), out.stop_reason != "aborted", (version, version))
            for out in outputs
        ]


_SETTINGS = {
    "output_kind": RequestOutputKind.FINAL_ONLY,
    "detokenize": False,
    # Lists instead of two objects for each token, which are 385 bytes and slow down the garbage collector.
    "flat_logprobs": True,
    # verl creates these settings for each request: vLLM need not copy them.
    "skip_clone": True,
}


class GroupReplica(vLLMReplica):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.server_class = ray.remote(GroupServer)

    async def init_on(self, node: str, wanted: Callable[[], bool]) -> None:
        """verl's `init_standalone`, on the node that has Ray's resource `node`; gives up when no longer `wanted`."""
        self.rollout_mode = RolloutMode.STANDALONE
        pool = RayResourcePool([self.world_size], max_colocate_count=2, accelerator_type=node)
        bundle = {"CPU": 2, get_platform().ray_resource_name(): 1, node: NODE_SHARE}
        group = placement_group([bundle] * self.world_size, strategy="STRICT_PACK")
        pool.pgs, self.resource_pool = [group], pool
        while not group.wait(LOOK_SECONDS):
            if not wanted():
                raise DistributedFaultError(f"Replica {self.replica_rank} was not placed: its node is gone.")
        self.workers = RayWorkerGroup(
            resource_pool=pool,
            ray_cls_with_init=self.get_ray_class_with_init_args(),
            bin_pack=False,
            name_prefix=f"rollout_standalone_{self.replica_rank}",
            use_gpu=True,
            device_name=get_device_name(),
        ).workers
        await self.launch_servers()

    def discard(self) -> None:
        """End the replica's actors and give back their place. Whatever is dead already is no error."""
        for actor in [*self.servers, *self.workers]:
            ray.kill(actor)
        for group in (self.resource_pool.pgs or []) if self.resource_pool is not None else []:
            remove_placement_group(group)

    async def launch_servers(self) -> None:
        await super().launch_servers()
        name = f"{self._get_server_name_prefix()}server_{self.replica_rank}_0{self.name_suffix}"
        self._server_handle = ServerName(name)


def register() -> None:
    """Serve rollouts named `vllm` by groups, in this process (verl's driver starts the replicas)."""
    RolloutReplicaRegistry.register("vllm", lambda: GroupReplica)
