"""Mixed in before the trainer with separate pools: its engines come and go while it trains."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray

from dapo_core.run import metrics
from dapo_core.run.deadlines import WAITING_FOR_ROLLOUTS
from dapo_trainer.verl_adapter.engine_watch import EngineWatch
from dapo_trainer.verl_adapter.rollout_fleet import RolloutFleet
from dapo_trainer.verl_adapter.rollout_nodes import pods, this_machine
from dapo_trainer.verl_adapter.session import current
from dapo_trainer.verl_adapter.weight_sync import WeightSync
from dapo_trainer.verl_config.placement import NODE_RESOURCE


class ElasticRollouts:
    """An engine that spans several pods does not come and go: the death of any ends the attempt then."""

    config: Any
    standalone_server_manager: Any
    standalone_checkpoint_manager: Any
    _fleet: RolloutFleet | None = None
    _phase_now: str = "start"
    _alone_since: float | None = None  # since when no engine serves, of time.monotonic

    def _phase(self, phase: str, detail: str = "") -> None:
        self._phase_now = phase
        super()._phase(phase, detail)  # type: ignore[misc]

    def _setup(self) -> None:
        super()._setup()  # type: ignore[misc]
        manager, session = self.standalone_server_manager, current()
        rollout = manager.rollout_config
        replicas = manager.get_replicas()
        if replicas[0].world_size > rollout.n_gpus_per_node:
            return
        slots = rollout.nnodes * rollout.n_gpus_per_node
        in_pods = NODE_RESOURCE["trainer"] in ray.cluster_resources()
        self._fleet = RolloutFleet(
            session,
            manager.global_load_balancer,
            make=lambda rank: manager.rollout_replica_class(
                replica_rank=rank,
                config=manager.rollout_config,
                model_config=manager.model_config,
                gpus_per_node=rollout.n_gpus_per_node,
            ),
            nodes=pods if in_pods else lambda: this_machine(slots),
            slots_per_engine=replicas[0].world_size,
            dismiss=session.dismiss if in_pods else None,
        )
        self._fleet.sync = WeightSync(self.standalone_checkpoint_manager, self._fleet)
        self._fleet.adopt(replicas)
        self.standalone_checkpoint_manager = self._fleet
        session.drain, session.while_waiting = self._fleet.drain, self._while_waiting

    @contextmanager
    def watch_engines(self) -> Iterator[None]:
        """Engines come and go in the block."""
        if self._fleet is None:
            with EngineWatch(self.standalone_server_manager.server_handles):
                yield
            return
        try:
            yield
        finally:
            self._fleet.close()

    def _while_waiting(self) -> None:
        """The trainer waits for groups and has the weights that it sent last: engines that came since get them."""
        assert self._fleet is not None
        self._fleet.admit()
        if self._fleet.serving:
            if self._alone_since is not None:
                self._fleet.waited(time.monotonic() - self._alone_since)
                self._alone_since = None
                self._phase(self._phase_now)
        elif self._alone_since is None:
            self._alone_since = time.monotonic()
            current().report.event("Warning", "NoRollouts", "No rollout engine is left; waiting for one to join.")
            self._phase(self._phase_now, WAITING_FOR_ROLLOUTS)

    def _engine_metrics(self) -> dict[str, float]:
        if self._fleet is None:
            return {}
        counts, (continued, restarted) = self._fleet.taken_counts(), current().moved.taken()
        return {
            metrics.ENGINES_SERVING: float(self._fleet.serving),
            metrics.ENGINES_LOST: float(counts.lost),
            metrics.ENGINES_JOINED: float(counts.joined),
            metrics.ENGINES_DRAINED: float(counts.drained),
            metrics.ENGINES_WAITED: counts.waited_seconds,
            metrics.RESPONSES_CONTINUED: float(continued),
            metrics.RESPONSES_RESTARTED: float(restarted),
        }
