"""vLLM served by groups: one call generates all responses to a prompt.

verl requests each response separately and has vLLM report every token of it. The responses of a group share the prompt
and are used together, so this server generates the group, reports once at the end, and leaves decoding to the scorer.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from uuid import uuid4

import ray
from verl.workers.rollout.llm_server import FullyAsyncLLMServerClient
from verl.workers.rollout.replica import RolloutReplicaRegistry
from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer, vLLMReplica
from vllm.sampling_params import RequestOutputKind

from dapo_trainer.verl_adapter.group_router import ServerName

RESUME_PAUSE_SECONDS = 0.05
ENGINE_LOOK_SECONDS = 0.5


@dataclass
class Response:
    """`log_probs`: of each token under the policy that sampled it; `versions`: oldest and newest weights used."""

    token_ids: list[int]
    log_probs: list[float]
    finished: bool
    versions: tuple[int, int]


class AnnouncingEngine:
    """A vLLM engine whose `generate` says so when a request is in the engine; everything else is the engine's own.

    verl takes a request for admitted at its first output. That of a request that reports once is its last: each weight
    update would wait for all that is generated, up to a minute, before it aborts the rest.
    """

    def __init__(self, engine: Any) -> None:
        self._engine = engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def generate(
        self, prompt: Any, sampling_params: Any, request_id: str, **options: Any
    ) -> AsyncIterator[Any | None]:
        """None once the engine has the request, then its outputs."""
        outputs = await self._engine.add_request(request_id, prompt, sampling_params, **options)
        finished = False
        try:
            yield None
            while not finished:
                output = outputs.get_nowait() or await outputs.get()
                finished = output.finished
                yield output
        finally:
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

    async def generate_group(
        self, prompts: Sequence[list[int]], budgets: Sequence[int], sampling: dict[str, Any]
    ) -> list[Response]:
        """One response for each prompt, of at most its budget of tokens; aborted responses are returned unfinished."""
        calls = [
            self.generate(prompt, {**sampling, "max_tokens": budget, **_FINAL_ONLY}, request_id=uuid4().hex)
            for prompt, budget in zip(prompts, budgets, strict=True)
        ]
        outputs = await asyncio.gather(*calls)
        version = int(self.global_steps or 0)
        return [
            Response(list(out.token_ids), list(out.log_probs or ()), out.stop_reason != "aborted", (version, version))
            for out in outputs
        ]


# Flat: lists instead of two objects for each token, which are 385 bytes and slow down the garbage collector.
_FINAL_ONLY = {"output_kind": RequestOutputKind.FINAL_ONLY, "detokenize": False, "flat_logprobs": True}


class GroupReplica(vLLMReplica):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.server_class = ray.remote(GroupServer)

    async def launch_servers(self) -> None:
        await super().launch_servers()
        name = f"{self._get_server_name_prefix()}server_{self.replica_rank}_0{self.name_suffix}"
        self._server_handle = ServerName(name)


class GroupClient(FullyAsyncLLMServerClient):
    """Finds the least busy server for a group, and continues the group after weight updates that interrupt it."""

    async def generate_group(
        self, prompt: list[int], count: int, budget: int, sampling: dict[str, Any]
    ) -> list[Response]:
        """`count` finished responses of at most `budget` tokens."""
        responses = [Response([], [], False, (1 << 31, -1)) for _ in range(count)]
        while open_ := [r for r in responses if not r.finished]:
            for response, more in zip(open_, await self._ask(prompt, open_, budget, sampling), strict=True):
                _append(response, more, budget)
            if any(not r.finished for r in open_):
                await asyncio.sleep(RESUME_PAUSE_SECONDS)
        return responses

    async def _ask(
        self, prompt: list[int], responses: list[Response], budget: int, sampling: dict[str, Any]
    ) -> list[Response]:
        request = uuid4().hex
        server_id, server = await self._acquire_server(request, prompt_ids=prompt, sampling_params=sampling)
        try:
            generated: list[Response] = await _actor(server).generate_group.remote(
                [prompt + r.token_ids for r in responses], [budget - len(r.token_ids) for r in responses], sampling
            )
            return generated
        finally:
            self._release_server(server_id, request)


@cache
def _actor(server: ServerName) -> Any:
    return ray.get_actor(server.actor)


def _append(response: Response, more: Response, budget: int) -> None:
    response.token_ids += more.token_ids
    response.log_probs += more.log_probs
    response.finished = more.finished or len(response.token_ids) >= budget
    response.versions = (min(response.versions[0], more.versions[0]), max(response.versions[1], more.versions[1]))


def register() -> None:
    """Serve rollouts named `vllm` by groups, in this process (verl's driver starts the replicas)."""
    RolloutReplicaRegistry.register("vllm", lambda: GroupReplica)
