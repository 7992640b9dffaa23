"""The engines of a run with separate pools, as they come and go: watched, started, given weights, and dropped.

A thread watches; the trainer's own thread sends weights, between steps and while it waits for groups.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import ray

from dapo_core.errors import DistributedFaultError
from dapo_trainer.rollouts.membership import Decision, Dismiss, Engine, EngineState, Liveness, Lose, Membership, Start
from dapo_trainer.verl_adapter.engine_processes import EngineProcess, kill_engine
from dapo_trainer.verl_adapter.rollout_nodes import EngineNode, room
from dapo_trainer.verl_adapter.session import Session
from dapo_trainer.verl_adapter.weight_sync import Replica, WeightSync
from dapo_trainer.verl_config.placement import pod_label

log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 1.0
DRAIN_SECONDS: Final = 15.0


class ElasticReplica(Replica, Protocol):
    """What is used of GroupReplica."""

    server_address: str
    server_handle: Any
    servers: list[Any]

    async def init_on(self, node: str, wanted: Callable[[], bool]) -> None: ...

    def discard(self) -> None: ...


@dataclass
class Member:
    """An engine that is up: `ended` is a future that ends with it, `processes` are ids on its node."""

    replica: ElasticReplica
    node: str
    ended: Any
    processes: Sequence[EngineProcess]
    liveness: Liveness
    progress: Any = None
    probe: Any = None


@dataclass
class EngineCounts:
    """Of engines, since the last `taken`."""

    lost: int = 0
    joined: int = 0
    drained: int = 0
    waited_seconds: float = 0.0


@dataclass
class RolloutFleet:
    """`make(rank)` makes a replica that is not started; `nodes()` tells which nodes there are; `dismiss(pod, why)`
    asks one to leave, and is None on one machine, where none would be left."""

    session: Session
    router: Any
    make: Callable[[int], ElasticReplica]
    nodes: Callable[[], Mapping[str, EngineNode]]
    slots_per_engine: int
    dismiss: Callable[[str, str], None] | None = None
    clock: Callable[[], float] = time.monotonic
    sync: WeightSync | None = None
    _membership: Membership = field(default_factory=Membership)
    _members: dict[int, Member] = field(default_factory=dict)
    _known: dict[str, EngineNode] = field(default_factory=dict)
    _counts: EngineCounts = field(default_factory=EngineCounts)
    _lock: threading.RLock = field(default_factory=threading.RLock)
    _over: threading.Event = field(default_factory=threading.Event)
    _error: BaseException | None = None
    _syncing: bool = False

    # ---- of the trainer's thread -----------------------------------------------------------------------------------

    def adopt(self, replicas: Sequence[ElasticReplica]) -> None:
        """Watch these engines, which verl has started, and those that come."""
        for replica in replicas:
            node = ray.get(replica.workers[0].__ray_call__.remote(_node_id))
            with self._lock:
                self._membership.adopt(replica.replica_rank, node)
            self._up(replica, node)
        self.session.departures.on_dead = self.lose_at
        threading.Thread(target=self._watch, name="rollout-fleet", daemon=True).start()

    def close(self) -> None:
        """Watch no longer: the run is over."""
        self._over.set()
        self.session.departures.on_dead = None

    def update_weights(self, global_steps: int | None = None) -> dict[str, Any]:
        """Send the trainer's weights to all engines, verl's call after each step."""
        self._send(EngineState.LOADED, EngineState.SERVING, step=global_steps)
        return {}

    def admit(self) -> None:
        """Send the weights that the engines have to those that were loaded since. Raises what ends the attempt."""
        if self._error is not None:
            raise self._error
        if self.sync is not None and self.sync.version is not None and self._replicas(EngineState.LOADED):
            self._send(EngineState.LOADED, step=self.sync.version)

    @property
    def serving(self) -> int:
        """How many engines answer requests."""
        with self._lock:
            return len(self._membership.in_state(EngineState.SERVING))

    def taken_counts(self) -> EngineCounts:
        """Since the last call."""
        with self._lock:
            counts, self._counts = self._counts, EngineCounts()
        return counts

    def waited(self, seconds: float) -> None:
        """The trainer waited that long without any engine."""
        with self._lock:
            self._counts.waited_seconds += seconds

    def _send(self, *states: EngineState, step: int | None) -> None:
        assert self.sync is not None
        self._syncing = True
        try:
            have = self.sync.send(self._replicas(*states), step)
        finally:
            with self._lock:
                self._syncing = False
                for member in self._members.values():
                    member.liveness.generated(self.clock())
        with self._lock:
            begin = {rank: self._members[rank] for rank in self._membership.synced(have) if rank in self._members}
        if begin:
            served = {each.replica.server_address: each.replica.server_handle for each in begin.values()}
            self.router.add_servers.remote(served)
            log.info("Engines that have the weights and serve from now on: %s.", ", ".join(map(str, begin)))

    def _replicas(self, *states: EngineState) -> list[Replica]:
        with self._lock:
            return [self._members[rank].replica for rank in self._membership.in_state(*states)]

    # ---- of any thread ---------------------------------------------------------------------------------------------

    def takes_weights(self, rank: int) -> bool:
        """Whether an engine is up and stays."""
        with self._lock:
            return rank in self._membership.in_state(EngineState.LOADED, EngineState.SERVING)

    def lose(self, rank: int, why: str) -> None:
        """An engine is dead, or as good as dead: its requests go to others, and what is left of it is ended."""
        with self._lock:
            engine, member = self._membership.lost(rank, self.clock()), self._members.pop(rank, None)
            if engine is None:
                return
            self._counts.lost += engine.state is not EngineState.DRAINING
        if member is not None:
            self._leave(member)
        if engine.state is not EngineState.DRAINING:
            self._tell("Warning", "RolloutLost", f"Engine {rank} on {self._place(engine)} is lost: {why}.")
        if member is not None:
            threading.Thread(target=_end, args=(member,), name=f"end-engine-{rank}", daemon=True).start()

    def lose_at(self, address: str, why: str) -> None:
        """`lose`, of the engine at that address."""
        with self._lock:
            ranks = [rank for rank, member in self._members.items() if member.replica.server_address == address]
        for rank in ranks:
            self.lose(rank, why)

    def drain(self, pod: str, role: str, done: Callable[[], None]) -> bool:
        """The pod is being terminated: its engines hand over what they generate, then `done` is called. Returns
        whether it is a node of engines. A rollout that is not known yet has just joined, and has none."""
        with self._lock:
            node = next((id for id, node in self._known.items() if node.pod == pod_label(pod)), None)
            if node is None:
                if role == "rollout":
                    done()
                return role == "rollout"
            engines = self._membership.drain(node)
            members = [self._members[engine.rank] for engine in engines if engine.rank in self._members]
            self._counts.drained += len(members)
        self._tell("Normal", "RolloutDrained", f"{pod} is being terminated; its requests go on with other engines.")
        threading.Thread(target=self._hand_over, args=(engines, members, done), name="drain", daemon=True).start()
        return True

    def _hand_over(self, engines: Sequence[Engine], members: Sequence[Member], done: Callable[[], None]) -> None:
        addresses = [member.replica.server_address for member in members]
        ray.get(self.router.remove_servers.remote(addresses))
        self.session.departures.hand_over(addresses)
        aborted = [
            server.abort_all_requests.remote(reject_request=True)
            for member in members
            for server in member.replica.servers
        ]
        _, late = ray.wait(aborted, num_returns=len(aborted), timeout=DRAIN_SECONDS) if aborted else ([], [])
        if late:
            log.warning("%d engines did not stop within %.0f s of being asked to drain", len(late), DRAIN_SECONDS)
        self.session.departures.wait_for_answers(addresses, DRAIN_SECONDS)
        for engine in engines:
            self.lose(engine.rank, "its pod was terminated")
        done()

    # ---- of the watching thread ------------------------------------------------------------------------------------

    def _watch(self) -> None:
        while not self._over.is_set():
            try:
                self._look()
            except Exception as error:
                if self._over.is_set():
                    return
                log.exception("Watching the rollout engines failed")
                self._error = error
                return

    def _look(self) -> None:
        with self._lock:
            ends = {member.ended: rank for rank, member in self._members.items()}
        died = ray.wait(list(ends), timeout=LOOK_SECONDS)[0] if ends else (self._over.wait(LOOK_SECONDS) and []) or []
        for ended in died:
            self.lose(ends[ended], _obituary(ended))
        nodes = dict(self.nodes())
        with self._lock:
            self._known |= nodes
            decisions = self._membership.look(room(nodes, self.slots_per_engine), self.clock())
        for decision in decisions:
            self._carry_out(decision)
        self._ask_after()

    def _carry_out(self, decision: Decision) -> None:
        if isinstance(decision, Lose):
            self.lose(decision.rank, decision.why)
        elif isinstance(decision, Start):
            threading.Thread(target=self._start, args=(decision,), name="start-engine", daemon=True).start()
        else:
            self._dismiss(decision)

    def _dismiss(self, decision: Dismiss) -> None:
        node, why = self._known[decision.node], "Its engines died again and again."
        if self.dismiss is None:
            self._error = DistributedFaultError(f"The rollout engines of this machine cannot be kept alive. {why}")
        else:
            self._tell("Warning", "RolloutDismissed", f"{node.pod} is dismissed. {why}")
            self.dismiss(node.pod, why)

    def _start(self, start: Start) -> None:
        replica, node = self.make(start.rank), self._known[start.node]
        try:
            asyncio.run(replica.init_on(node.resource, lambda: self._is_wanted(start.rank)))
            self._up(replica, start.node)
        except Exception as error:
            if self._over.is_set():
                return
            log.warning("Engine %d on %s did not start", start.rank, node.pod, exc_info=True)
            self.lose(start.rank, f"it did not start ({type(error).__name__}: {error})")
            replica.discard()
            return
        with self._lock:
            if not self._membership.loaded(start.rank):
                return
            self._counts.joined += 1
        self._tell("Normal", "RolloutJoined", f"Engine {start.rank} on {node.pod} is loaded and receives weights.")

    def _is_wanted(self, rank: int) -> bool:
        with self._lock:
            return rank in self._membership.engines and not self._over.is_set()

    def _up(self, replica: ElasticReplica, node: str) -> None:
        server = replica.servers[0]
        processes = ray.get(server.processes.remote())
        ended = server.outlive_engine.remote()
        member = Member(replica, node, ended, processes, Liveness(self.clock()))
        with self._lock:
            wanted = replica.replica_rank in self._membership.engines
            if wanted:
                self._members[replica.replica_rank] = member
        if not wanted:
            _end(member)

    def _ask_after(self) -> None:
        """Find the engines that are alive and do not generate."""
        with self._lock:
            if self._syncing:
                return
            members = [(rank, self._members[rank]) for rank in self._membership.in_state(EngineState.SERVING)]
        now = self.clock()
        for rank, member in members:
            if _answered(member.progress):
                member.liveness.progressed(_value(member.progress), now)
                member.progress = None
            if _answered(member.probe):
                member.liveness.generated(now)
                member.probe = None
            server = member.replica.servers[0]
            if member.progress is None:
                member.progress = server.progress.remote()
            if member.probe is None and member.liveness.to_be_asked(now):
                member.probe = server.probe.remote()
            if member.liveness.wedged(now):
                self._tell("Warning", "RolloutWedged", f"Engine {rank} is alive and generates nothing.")
                self.lose(rank, "it generated nothing although it was asked to")

    def _leave(self, member: Member) -> None:
        address = member.replica.server_address
        self.router.remove_servers.remote([address])
        self.session.departures.announce(address)

    def _tell(self, type: Any, reason: str, message: str) -> None:
        log.info("%s: %s", reason, message)
        self.session.report.event(type, reason, f"{message} {self.serving} engines serve.")

    def _place(self, engine: Engine) -> str:
        node = self._known.get(engine.node)
        return engine.node if node is None else node.pod


def _node_id(_worker: Any) -> str:
    return str(ray.get_runtime_context().get_node_id())


def _end(member: Member) -> None:
    """End what is left of an engine, which gives its slots back."""
    try:
        kill_engine(member.node, member.processes)
        member.replica.discard()
    except Exception:
        log.warning("What is left of engine %d could not be ended", member.replica.replica_rank, exc_info=True)


def _answered(ref: Any) -> bool:
    """Whether a call has ended well; one that failed is no sign of life, and the engine's end is seen elsewhere."""
    if ref is None or not ray.wait([ref], timeout=0)[0]:
        return False
    try:
        ray.get(ref)
    except Exception:
        return False
    return True


def _value(ref: Any) -> int:
    return int(ray.get(ref))


def _obituary(ended: Any) -> str:
    try:
        ray.get(ended)
    except Exception as error:
        return f"its server is gone ({type(error).__name__})"
    return "its process died; its last output is in the log of its pod or of the attempt"
