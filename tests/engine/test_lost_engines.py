"""Groups whose engines die, hand over, hang and join while they generate: each is finished once, token by token."""

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

import engines
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dapo_trainer.verl_adapter import session as sessions
from dapo_trainer.verl_adapter.session import Session

BUDGET = 6


class Streamed:
    """`method.options(...).remote(requests)` of an actor that yields references."""

    def __init__(self, engine: "Engine") -> None:
        self._engine = engine

    def options(self, **_: Any) -> "Streamed":
        return self

    async def remote(self, requests: list[Any]) -> AsyncIterator[Any]:
        for place, request in enumerate(requests):
            answer = await self._engine.generate(request.prompts, request.budgets)

            async def reference(finished: Any = [(place, answer)]) -> Any:  # noqa: B006
                return finished

            yield reference()


@dataclass
class Engine:
    """Appends the next numbers to what it is asked to continue."""

    adapter: ModuleType
    stage: "Stage"
    address: str
    chance: random.Random
    draining: bool = False
    dead: bool = False
    answer: Any = None

    @property
    def generate_groups(self) -> Streamed:
        return Streamed(self)

    async def generate(self, prompts: list[list[int]], budgets: list[int]) -> list[Any]:
        if self.answer is not None:
            answered: list[Any] = await self.answer(prompts, budgets)
            return answered
        for _ in range(self.chance.randrange(4)):
            await asyncio.sleep(0)
        answers = [self._answer(prompt, budget) for prompt, budget in zip(prompts, budgets, strict=True)]
        what = self.chance.random()
        if self.dead or what < 0.15:
            raise self.stage.died
        if what < 0.3:
            await asyncio.sleep(3600)  # until somebody finds out
        return answers

    def _answer(self, prompt: list[int], budget: int) -> Any:
        count = self.chance.randint(0, budget) if self.draining or self.chance.random() < 0.4 else budget
        begin = prompt[-1] + 1
        finished = count == budget
        return self.adapter.Response([*range(begin, begin + count)], [-1.0] * count, finished, (3, 4))


@dataclass
class Stage:
    """The router, and the thread that watches engines, in one loop with the requests."""

    adapter: ModuleType
    session: Session
    chance: random.Random
    died: Exception
    engines: dict[str, Engine] = field(default_factory=dict)
    leaving: list[str] = field(default_factory=list)
    made: int = 0

    def __post_init__(self) -> None:
        self.session.departures.on_dead = lambda address, _: self.lose(address)
        self.join()

    def join(self) -> None:
        self.made += 1
        address = f"10.0.0.{self.made}:80"
        self.engines[address] = Engine(self.adapter, self, address, self.chance)

    def lose(self, address: str) -> None:
        if (engine := self.engines.pop(address, None)) is not None:
            engine.dead = True
        self.session.departures.announce(address)

    def drain(self, address: str) -> None:
        self.engines.pop(address).draining = True
        self.leaving.append(address)
        self.session.departures.hand_over([address])

    def client(self) -> Any:
        stage = self

        class Client(self.adapter.GroupClient):  # type: ignore[name-defined]
            async def _acquire(self, count: int) -> list[tuple[str, Any]]:
                while not stage.engines:
                    await asyncio.sleep(0)
                chosen = [stage.chance.choice(sorted(stage.engines)) for _ in range(count)]
                return [(address, stage.engines[address]) for address in chosen]

        return Client(config=None, load_balancer_handle=MagicMock())

    async def befall(self) -> None:
        """Engines join, die and leave; those that hang are found sooner or later."""
        while True:
            await asyncio.sleep(0)
            what = self.chance.randrange(5)
            if what == 4 and self.leaving:
                self.lose(self.leaving.pop(0))
            elif what == 0 or not self.engines:
                self.join()
            elif what == 1:
                self.lose(self.chance.choice(sorted(self.engines)))
            elif what == 2:
                self.drain(self.chance.choice(sorted(self.engines)))


@pytest.fixture(scope="module")
def adapter() -> Iterator[Any]:
    module: Any = engines.load("dapo_trainer.verl_adapter.group_client")
    before, pause, actor = sessions._current, module.RESUME_PAUSE_SECONDS, module._actor
    module.RESUME_PAUSE_SECONDS, module._actor = 0.0, lambda engine: engine
    yield module
    module.RESUME_PAUSE_SECONDS, module._actor, sessions._current = pause, actor, before


@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_token_is_lost_or_there_twice_whatever_befalls_the_engines(adapter: ModuleType, seed: int) -> None:
    from ray.exceptions import ActorDiedError

    session = Session(MagicMock(), {})
    sessions.open_session(session)
    stage = Stage(adapter, session, random.Random(seed), ActorDiedError())

    async def scene() -> list[list[Any]]:
        client = stage.client()
        fate = asyncio.ensure_future(stage.befall())
        groups = await asyncio.gather(*(client.generate_group([100 * i], 4, BUDGET, {}) for i in range(1, 6)))
        fate.cancel()
        return groups

    groups = asyncio.run(scene())
    for number, responses in enumerate(groups, 1):
        begin = 100 * number + 1
        for response in responses:
            assert response.token_ids == [*range(begin, begin + BUDGET)] and response.finished
            assert len(response.log_probs) == BUDGET
            assert response.versions == (3, 4)


@pytest.mark.parametrize("error", ["its own", "the engine's"])
def test_errors_that_are_no_engines_death_are_raised(adapter: ModuleType, error: str) -> None:
    from ray.exceptions import ActorDiedError, RayTaskError

    raised = (
        RayTaskError("generate_group", "", ValueError("no such prompt")) if error == "its own" else ActorDiedError()
    )
    session = Session(MagicMock(), {})
    sessions.open_session(session)
    stage = Stage(adapter, session, random.Random(0), raised)
    if error == "the engine's":
        session.departures.on_dead = None  # Colocated: whoever loses an engine loses the attempt
    next(iter(stage.engines.values())).dead = True
    with pytest.raises(type(raised)):
        asyncio.run(stage.client().generate_group([1], 2, BUDGET, {}))


@pytest.mark.parametrize("leave", ["lose", "drain"])
def test_what_moved_is_counted(adapter: ModuleType, leave: str) -> None:
    session = Session(MagicMock(), {})
    sessions.open_session(session)
    stage = Stage(adapter, session, random.Random(0), ValueError())
    [first] = stage.engines.values()

    async def partly(prompts: list[list[int]], _: list[int]) -> list[Any]:
        stage.join()
        for engine in list(stage.engines.values())[1:]:
            engine.answer = whole
        getattr(stage, leave)(first.address)
        await asyncio.sleep(0)
        return [
            adapter.Response([prompts[0][-1] + 1], [-1.0], False, (3, 3)),
            *(adapter.Response([], [], False, (3, 3)) for _ in prompts[1:]),
        ]

    async def whole(prompts: list[list[int]], budgets: list[int]) -> list[Any]:
        made = zip(prompts, budgets, strict=True)
        return [
            adapter.Response([*range(p[-1] + 1, p[-1] + 1 + count)], [-1.0] * count, True, (4, 4)) for p, count in made
        ]

    first.answer = partly
    responses = asyncio.run(stage.client().generate_group([10], 3, BUDGET, {}))
    assert [response.token_ids for response in responses] == [[*range(11, 11 + BUDGET)]] * 3
    assert session.moved.taken() == ((0, 3) if leave == "lose" else (1, 2))
