"""The engines of a run as the driver knows them: over a stage where Ray's calls are answered at once."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import engines
import pytest
from patience import patient

from dapo_core.errors import DistributedFaultError
from dapo_trainer.rollouts.membership import START_AGAIN_SECONDS, WEDGED_AFTER_SECONDS, EngineState
from dapo_trainer.verl_adapter.session import Session


class Died(Exception):
    """As Ray tells of an actor's death."""


@dataclass(eq=False)
class Ref:
    """A call that is answered by `value`, by the error in it, or not yet."""

    value: Any = None
    pending: bool = False

    def result(self) -> Any:
        if isinstance(self.value, Exception):
            raise self.value
        return self.value


class Ray:
    """Ray's calls that the fleet makes."""

    def wait(self, refs: Sequence[Ref], num_returns: int = 1, timeout: float = 0.0) -> tuple[list[Ref], list[Ref]]:
        return [ref for ref in refs if not ref.pending], [ref for ref in refs if ref.pending]

    def get(self, ref: Ref) -> Any:
        return ref.result()


def method(answer: Callable[..., Any]) -> SimpleNamespace:
    """An actor's method."""
    return SimpleNamespace(remote=lambda *args, **kwargs: answer(*args, **kwargs))


class Replica:
    """An engine that loads and serves, until its test says otherwise."""

    def __init__(self, stage: "Stage", rank: int, node: str = "") -> None:
        self.stage, self.replica_rank, self.node = stage, rank, node
        self.server_address, self.server_handle, self.resource_pool = f"engine-{rank}", rank, None
        self.ended, self.discarded, self.tokens, self.works = Ref(pending=True), False, 0, True
        self.workers = [SimpleNamespace(__ray_call__=method(lambda _: Ref(self.node)))]
        self.servers = [
            SimpleNamespace(
                processes=method(lambda: Ref([])),
                outlive_engine=method(lambda: self.ended),
                progress=method(self._progress),
                probe=method(lambda: Ref(pending=not self.works)),
                abort_all_requests=method(lambda reject_request: Ref(stage.aborted.append(rank))),
            )
        ]

    def _progress(self) -> Ref:
        return Ref(self.tokens)

    async def init_on(self, node: str, wanted: Callable[[], bool]) -> None:
        self.node = node
        if self.stage.fails:
            raise MemoryError("no room")

    def discard(self) -> None:
        self.discarded = True

    def die(self) -> None:
        self.ended.pending = False


@dataclass
class Stage:
    module: Any
    now: float = 0.0
    fails: bool = False
    nodes: dict[str, int] = field(default_factory=lambda: {"a": 1, "b": 1})
    replicas: dict[int, Replica] = field(default_factory=dict)
    routed: set[str] = field(default_factory=set)
    aborted: list[int] = field(default_factory=list)
    sent: list[tuple[list[int], int | None]] = field(default_factory=list)
    dismissed: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.report = MagicMock()
        self.session = Session(self.report, {})
        router = SimpleNamespace(add_servers=method(self._add), remove_servers=method(self._remove))
        self.fleet = self.module.RolloutFleet(
            self.session,
            router,
            make=self._make,
            nodes=lambda: {n: self.module.EngineNode(n, f"pod-{n}", n, slots) for n, slots in self.nodes.items()},
            slots_per_engine=1,
            dismiss=lambda pod, _: self.dismissed.append(pod),
            clock=lambda: self.now,
        )
        self.fleet.sync = SimpleNamespace(version=None, send=self._send)

    def _make(self, rank: int) -> Replica:
        self.replicas[rank] = Replica(self, rank)
        return self.replicas[rank]

    def _add(self, servers: dict[str, int]) -> Ref:
        return Ref(self.routed.update(servers))

    def _remove(self, servers: list[str]) -> Ref:
        return Ref(self.routed.difference_update(servers))

    def _send(self, replicas: Sequence[Replica], step: int | None) -> list[int]:
        self.fleet.sync.version = step
        ranks = [replica.replica_rank for replica in replicas]
        self.sent.append((ranks, step))
        return ranks

    def begin(self) -> None:
        """Two engines that verl has started have weights and requests."""
        for rank, node in enumerate("ab"):
            self.replicas[rank] = Replica(self, rank, node)
        self.fleet.adopt(list(self.replicas.values()))
        self.fleet.update_weights(1)
        assert self.routed == {"engine-0", "engine-1"}
        self.look()

    def look(self) -> None:
        self.fleet._look()

    def until(self, holds: Callable[[], bool]) -> None:
        """What other threads do."""
        deadline = time.monotonic() + patient(20)
        while not holds():
            assert time.monotonic() < deadline
            time.sleep(0.001)

    def loaded(self, rank: int) -> Callable[[], bool]:
        return lambda: rank in self.fleet._membership.in_state(EngineState.LOADED)

    def told(self) -> list[str]:
        return [call.args[1] for call in self.report.event.call_args_list]


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    module: ModuleType = engines.load("dapo_trainer.verl_adapter.rollout_fleet")
    monkeypatch.setattr(module, "ray", Ray())
    monkeypatch.setattr(module, "kill_engine", lambda _node, _processes: None)
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(module.RolloutFleet, "_watch", lambda _self: None)  # the test looks
    made, before = Stage(module), set(threading.enumerate())
    made.begin()
    yield made
    made.fleet.close()
    for thread in set(threading.enumerate()) - before:
        thread.join(patient(20))
        assert not thread.is_alive(), f"{thread.name} would go on with the real Ray"


def test_a_dead_engine_is_replaced_where_it_was_and_serves_once_it_has_weights(stage: Stage) -> None:
    stage.replicas[1].die()
    stage.look()
    assert stage.routed == {"engine-0"} and stage.session.departures.has_left("engine-1")
    stage.until(stage.loaded(2))
    stage.until(lambda: stage.replicas[1].discarded)
    assert stage.replicas[2].node == "b" and stage.routed == {"engine-0"}
    stage.fleet.admit()
    assert stage.sent[-1] == ([2], 1), "at once, with the weights that the others have"
    assert stage.routed == {"engine-0", "engine-2"} and stage.fleet.serving == 2
    stage.fleet.update_weights(2)
    assert stage.sent[-1] == ([0, 2], 2)
    counts = stage.fleet.taken_counts()
    assert (counts.lost, counts.joined, counts.drained) == (1, 1, 0)
    assert stage.fleet.taken_counts().lost == 0
    assert stage.told() == ["RolloutLost", "RolloutJoined"]


def test_a_pod_that_joins_gets_an_engine(stage: Stage) -> None:
    stage.nodes["c"] = 1
    stage.look()
    stage.until(stage.loaded(2))
    stage.fleet.update_weights(2)
    assert stage.sent[-1] == ([0, 1, 2], 2) and stage.fleet.serving == 3


def test_a_pod_that_is_gone_takes_its_engines_along(stage: Stage) -> None:
    del stage.nodes["b"]
    stage.look()
    assert stage.routed == {"engine-0"}
    stage.nodes["b2"] = 1
    stage.look()
    stage.until(stage.loaded(2))
    assert stage.replicas[2].node == "b2"


def test_an_engine_that_generates_nothing_is_found_by_its_work(stage: Stage) -> None:
    stage.replicas[1].works = False
    for second in range(0, int(WEDGED_AFTER_SECONDS) + 20, 5):
        stage.now = float(second)
        stage.replicas[0].tokens += 1
        stage.look()
    assert stage.routed == {"engine-0"}
    assert stage.told()[:2] == ["RolloutWedged", "RolloutLost"]


def test_an_engine_that_idles_is_asked_and_stays(stage: Stage) -> None:
    for second in range(0, 10 * int(WEDGED_AFTER_SECONDS), 5):
        stage.now = float(second)
        stage.look()
    assert stage.fleet.serving == 2 and stage.told() == []


def test_a_pod_that_is_terminated_hands_over_and_is_let_go(stage: Stage) -> None:
    done: list[str] = []
    assert stage.fleet.drain("pod-b", "rollout", lambda: done.append("b"))
    stage.until(lambda: done == ["b"])
    assert stage.aborted == [1] and stage.routed == {"engine-0"}
    assert stage.session.departures.is_leaving("engine-1")
    stage.look()
    assert 2 not in stage.replicas, "nothing starts there any more"
    assert stage.told() == ["RolloutDrained"], "this is no loss"
    assert stage.fleet.taken_counts().drained == 1
    assert not stage.fleet.drain("a-trainer", "trainer", lambda: None)


def test_a_rollout_that_is_terminated_before_it_is_known_is_let_go(stage: Stage) -> None:
    """Else the driver would take it for a pod that the attempt cannot do without."""
    done: list[str] = []
    assert stage.fleet.drain("pod-new", "rollout", lambda: done.append("new"))
    assert done == ["new"]


def test_the_last_engine_may_go_and_the_next_begins_with_the_weights_of_now(stage: Stage) -> None:
    stage.nodes.clear()
    stage.look()
    assert stage.fleet.serving == 0
    stage.fleet.update_weights(2)
    stage.nodes["c"] = 1
    stage.look()
    stage.until(stage.loaded(2))
    stage.fleet.admit()
    assert stage.sent[-1] == ([2], 2) and stage.fleet.serving == 1


@pytest.mark.parametrize("in_pods", [True, False], ids=["a pod is dismissed", "on one machine the attempt ends"])
def test_engines_that_never_live(stage: Stage, in_pods: bool) -> None:
    if not in_pods:
        stage.fleet.dismiss = None
    stage.fails = True
    stage.replicas[1].die()
    for pause in (*START_AGAIN_SECONDS, 0.0):
        stage.now += pause
        stage.look()
        stage.until(lambda: all(engine.node == "a" for engine in stage.fleet._membership.engines.values()))
    if in_pods:
        assert stage.dismissed == ["pod-b"] and stage.fleet.serving == 1
        stage.fleet.admit()
    else:
        with pytest.raises(DistributedFaultError, match="cannot be kept alive"):
            stage.fleet.admit()
