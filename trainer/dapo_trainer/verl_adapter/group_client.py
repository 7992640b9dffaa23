"""Groups from engines: what is asked for at the same time shares the calls between processes.

For a short group a call costs more than all else that the driver and the server do for it, and a group took four: one
to choose an engine, one to it, its answer, and one to say that the engine is free again.
"""

import asyncio
from collections.abc import Sequence
from functools import cache
from typing import Any

import ray
from verl.workers.rollout.llm_server import FullyAsyncLLMServerClient

from dapo_trainer.verl_adapter.group_router import ServerName
from dapo_trainer.verl_adapter.group_server import FinishedGroups, GroupRequest, Response

RESUME_PAUSE_SECONDS = 0.05
NO_SERVER_PAUSE_SECONDS = 1.0

Answer = asyncio.Future[list[Response]]


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
        responses = [Response([], [], False, (1 << 31, -1)) for _ in range(count)]
        while open_ := [r for r in responses if not r.finished]:
            prompts, budgets = [prompt + r.token_ids for r in open_], [budget - len(r.token_ids) for r in open_]
            for response, more in zip(open_, await self._ask(GroupRequest(prompts, budgets, sampling)), strict=True):
                _append(response, more, budget)
            if any(not r.finished for r in open_):
                await asyncio.sleep(RESUME_PAUSE_SECONDS)
        return responses

    async def _ask(self, request: GroupRequest) -> list[Response]:
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
        answers = [answer for _, answer in asked]
        missing = len(answers)
        try:
            calls = _actor(server).generate_groups.options(num_returns="streaming")
            async for reference in calls.remote([request for request, _ in asked]):
                finished: FinishedGroups = await reference
                for place, responses in finished:
                    if not answers[place].done():
                        answers[place].set_result(responses)
                missing -= len(finished)
                self._load_balancer.release_servers.remote(server_id, len(finished))
        except Exception as error:
            _fail(answers, error)
            self._load_balancer.release_servers.remote(server_id, missing)


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
