"""Groups from engines: what is asked for at the same time shares the calls between processes.

For a short group a call costs more than all else that the driver and the server do for it, and a group took four: one
to choose an engine, one to it, its answer, and one to say that the engine is free again.
"""

import asyncio
from collections.abc import Sequence
from functools import cache, partial
from typing import Any

import ray
from ray.exceptions import RayActorError, RayTaskError
from verl.workers.rollout.llm_server import FullyAsyncLLMServerClient
from vllm.v1.engine.exceptions import EngineDeadError

from dapo_trainer.verl_adapter.group_router import ServerName
from dapo_trainer.verl_adapter.group_server import FinishedGroups, GroupRequest, Response
from dapo_trainer.verl_adapter.session import current

RESUME_PAUSE_SECONDS = 0.05
NO_SERVER_PAUSE_SECONDS = 1.0
NO_VERSIONS = (1 << 31, -1)  # of weights that generated nothing

# And whether the engine leaves: what is unfinished goes on with another one.
Answer = asyncio.Future[tuple[list[Response], bool]]


class GroupClient(FullyAsyncLLMServerClient):
    """Finds the least busy server for a group, and continues the group after weight updates that interrupt it.

    Used on one event loop.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._unsent: list[tuple[GroupRequest, Answer]] = []
        self._calls: set[asyncio.Task[None]] = set()  # the loop itself keeps no reference to its tasks

    async def generate_group(
        self, prompt: list[int], count: int, budget: int, sampling: dict[str, Any]
    ) -> list[Response]:
        """`count` finished responses of at most `budget` tokens."""
        responses = [Response([], [], False, NO_VERSIONS) for _ in range(count)]
        while open_ := [r for r in responses if not r.finished]:
            prompts, budgets = [prompt + r.token_ids for r in open_], [budget - len(r.token_ids) for r in open_]
            answer, leaves = await self._ask(GroupRequest(prompts, budgets, sampling))
            for response, more in zip(open_, answer, strict=True):
                _append(response, more, budget)
            if unfinished := [r for r in open_ if not r.finished]:
                if leaves:
                    current().moved.add(len(r.token_ids) for r in unfinished)
                await asyncio.sleep(RESUME_PAUSE_SECONDS)
        return responses

    async def _ask(self, request: GroupRequest) -> tuple[list[Response], bool]:
        """Sent together with what else is asked for before the event loop comes to it."""
        answer: Answer = asyncio.get_running_loop().create_future()
        if not self._unsent:
            self._start(self._send())
        self._unsent.append((request, answer))
        return await answer

    def _start(self, call: Any) -> None:
        task = asyncio.ensure_future(call)
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)

    async def _send(self) -> None:
        asked, self._unsent = self._unsent, []
        try:
            servers = await self._acquire(len(asked))
        except Exception as error:
            _fail([answer for _, answer in asked], error)
            return
        of_server: dict[str, list[tuple[GroupRequest, Answer]]] = {}
        for (server_id, _), one in zip(servers, asked, strict=True):
            of_server.setdefault(server_id, []).append(one)
        for server_id, server in dict(servers).items():
            self._start(self._call(server_id, server, of_server[server_id]))

    async def _acquire(self, count: int) -> Sequence[tuple[str, ServerName]]:
        """A server for each of `count` groups, by its id; waits for one as verl's client does."""
        while True:
            try:
                servers: Sequence[tuple[str, ServerName]] = await self._load_balancer.acquire_servers.remote(count)
                return servers
            except RuntimeError as error:
                if not (self._only_hybrid and "No available servers" in str(error)):
                    raise
            await asyncio.sleep(NO_SERVER_PAUSE_SECONDS)

    async def _call(self, server_id: str, server: ServerName, asked: list[tuple[GroupRequest, Answer]]) -> None:
        """All answers: from an engine that is lost, that it generated nothing."""
        departures = current().departures
        receiving = asyncio.ensure_future(self._receive(server_id, server, asked))
        try:
            with departures.told(server_id, partial(_cancel, asyncio.get_running_loop(), receiving)):
                await receiving
        except asyncio.CancelledError:
            if not departures.has_left(server_id):
                raise
        except Exception as error:
            if departures.on_dead is None or not _is_death(error):
                _fail([answer for _, answer in asked], error)
            else:
                departures.on_dead(server_id, f"a request found it dead ({type(error).__name__})")
        lost = [(request, answer) for request, answer in asked if not answer.done()]
        for request, answer in lost:
            answer.set_result(([Response([], [], False, NO_VERSIONS) for _ in request.prompts], True))

    async def _receive(self, server_id: str, server: ServerName, asked: list[tuple[GroupRequest, Answer]]) -> None:
        answers, departures = [answer for _, answer in asked], current().departures
        missing = len(answers)
        try:
            calls = _actor(server).generate_groups.options(num_returns="streaming")
            async for reference in calls.remote([request for request, _ in asked]):
                finished: FinishedGroups = await reference
                leaves = departures.is_leaving(server_id)
                for place, responses in finished:
                    if not answers[place].done():
                        answers[place].set_result((responses, leaves))
                missing -= len(finished)
                self._load_balancer.release_servers.remote(server_id, len(finished))
        finally:
            if missing:
                self._load_balancer.release_servers.remote(server_id, missing)


def _is_death(error: Exception) -> bool:
    """Whether the server or its engine is dead, and not only the request wrong."""
    return isinstance(error, RayActorError) or (
        isinstance(error, RayTaskError) and isinstance(error.cause, EngineDeadError)
    )


def _cancel(loop: asyncio.AbstractEventLoop, receiving: asyncio.Future[None]) -> None:
    loop.call_soon_threadsafe(receiving.cancel)


def _fail(answers: Sequence[Answer], error: Exception) -> None:
    for answer in answers:
        if not answer.done():
            answer.set_exception(error)


@cache
def _actor(server: ServerName) -> Any:
    return ray.get_actor(server.actor)


def _append(response: Response, more: Response, budget: int) -> None:
    response.token_ids += more.token_ids
    response.log_probs += more.log_probs
    response.finished = more.finished or len(response.token_ids) >= budget
    response.versions = (min(response.versions[0], more.versions[0]), max(response.versions[1], more.versions[1]))
