"""Which engines a run has, and what is done as nodes join, engines die and weights are sent. Pure: no Ray, no clock.

Engines that are alive but do not generate are found by their work and not by their process, and those that do not
take weights by the time that earlier updates took.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

# Without progress for this long an engine is asked for one token; without progress or that token for the second, it is
# taken for wedged. An engine on a busy processor takes seconds for a token, and a minute is no more than that costs.
ASK_AFTER_SECONDS: Final = 20.0
WEDGED_AFTER_SECONDS: Final = 90.0


@dataclass
class Liveness:
    """What is known of one engine that serves. `seen_at`: when it was last known to generate (seconds)."""

    seen_at: float
    _progress: int | None = None

    def progressed(self, progress: int, now: float) -> None:
        """The engine reported how much it has done: a number that grows while it works."""
        if progress != self._progress:
            self._progress, self.seen_at = progress, now

    def generated(self, now: float) -> None:
        """The token that it was asked for has come, or it was paused: nothing is known against it."""
        self.seen_at = now

    def to_be_asked(self, now: float) -> bool:
        """Whether it is time for a request of one token."""
        return now >= self.seen_at + ASK_AFTER_SECONDS

    def wedged(self, now: float) -> bool:
        """Whether it has neither progressed nor answered for too long."""
        return now >= self.seen_at + WEDGED_AFTER_SECONDS


# The first weight updates have a limit that no live engine exceeds; later ones a multiple of the longest so far.
FIRST_SYNCS: Final = 2
FIRST_SYNC_SECONDS: Final = 1800.0
LEAST_SYNC_SECONDS: Final = 120.0
SYNC_FACTOR: Final = 10.0


@dataclass
class SyncLimit:
    """How long an engine may take to receive weights."""

    _longest: float = 0.0
    _count: int = 0

    def took(self, seconds: float) -> None:
        """An update has taken this long."""
        self._longest, self._count = max(self._longest, seconds), self._count + 1

    @property
    def seconds(self) -> float:
        """For the next one."""
        if self._count < FIRST_SYNCS:
            return FIRST_SYNC_SECONDS
        return max(LEAST_SYNC_SECONDS, SYNC_FACTOR * self._longest)


# A node's engine that died is started again after these seconds, by how often that happened in the window; once more,
# and the node is dismissed.
START_AGAIN_SECONDS: Final = (0.0, 5.0, 30.0)
WINDOW_SECONDS: Final = 600.0


class EngineState(Enum):
    """What an engine is doing. One that is lost or has left is forgotten."""

    LOADING = "loading"
    LOADED = "loaded"  # waits for weights: until then it would answer with those it was made with
    SERVING = "serving"
    DRAINING = "draining"


@dataclass
class Engine:
    """`rank` is verl's rank of the replica, which names its actors and is given once; `node` is Ray's id of a node."""

    rank: int
    node: str
    state: EngineState = EngineState.LOADING


@dataclass(frozen=True)
class Start:
    """Load an engine on a node that has room for it."""

    rank: int
    node: str


@dataclass(frozen=True)
class Lose:
    """An engine is gone with its node."""

    rank: int
    why: str


@dataclass(frozen=True)
class Dismiss:
    """Engines die again and again on this node."""

    node: str


Decision = Start | Lose | Dismiss


@dataclass
class Membership:
    """The engines of a run by rank. Not thread-safe."""

    next_rank: int = 0
    engines: dict[int, Engine] = field(default_factory=dict)
    _leaving: set[str] = field(default_factory=set)
    _dismissed: set[str] = field(default_factory=set)
    _losses: dict[str, list[float]] = field(default_factory=dict)

    def adopt(self, rank: int, node: str) -> None:
        """An engine that verl has started by itself; it has no weights yet."""
        self.engines[rank] = Engine(rank, node, EngineState.LOADED)
        self.next_rank = max(self.next_rank, rank + 1)

    def look(self, room: Mapping[str, int], now: float) -> list[Decision]:
        """What to do, given the nodes that are there and how many engines each has room for. A decision is returned
        once: a `Start` is under way from here on; `lost` has to be called for a `Lose`."""
        for known in [self._leaving, self._dismissed]:
            known.intersection_update(room)
        decisions: list[Decision] = [
            Lose(engine.rank, "its node is gone") for engine in self.engines.values() if engine.node not in room
        ]
        for node, engines in room.items():
            if node in self._leaving or node in self._dismissed:
                continue
            losses = self._recent_losses(node, now)
            if len(losses) > len(START_AGAIN_SECONDS):
                self._dismissed.add(node)
                decisions.append(Dismiss(node))
            elif not losses or now >= losses[-1] + START_AGAIN_SECONDS[len(losses) - 1]:
                missing = engines - sum(engine.node == node for engine in self.engines.values())
                decisions += [self._start(node) for _ in range(missing)]
        return decisions

    def _start(self, node: str) -> Start:
        rank, self.next_rank = self.next_rank, self.next_rank + 1
        self.engines[rank] = Engine(rank, node)
        return Start(rank, node)

    def _recent_losses(self, node: str, now: float) -> list[float]:
        return [at for at in self._losses.get(node, ()) if at > now - WINDOW_SECONDS]

    def loaded(self, rank: int) -> bool:
        """An engine that was started is up. Returns whether it is still wanted."""
        engine = self.engines.get(rank)
        if engine is None:
            return False
        if engine.state is EngineState.LOADING:
            engine.state = EngineState.LOADED
        return True

    def lost(self, rank: int, now: float) -> Engine | None:
        """The engine died, or was found dead. Returns it the first time, None for one that is gone already."""
        engine = self.engines.pop(rank, None)
        if engine is not None and engine.state is not EngineState.DRAINING:
            self._losses[engine.node] = [*self._recent_losses(engine.node, now), now]
        return engine

    def drain(self, node: str) -> list[Engine]:
        """The node is about to go: no engine starts there any more. Returns its engines, which serve no new request."""
        self._leaving.add(node)
        engines = [engine for engine in self.engines.values() if engine.node == node]
        for engine in engines:
            engine.state = EngineState.DRAINING
        return engines

    def synced(self, ranks: Iterable[int]) -> list[int]:
        """Engines have received weights. Returns those of them that begin to serve."""
        begin = [
            rank
            for rank in ranks
            if (engine := self.engines.get(rank)) is not None and engine.state is EngineState.LOADED
        ]
        for rank in begin:
            self.engines[rank].state = EngineState.SERVING
        return begin

    def in_state(self, *states: EngineState) -> list[int]:
        """Ranks of the engines in one of these states, in order."""
        return [rank for rank, engine in sorted(self.engines.items()) if engine.state in states]
