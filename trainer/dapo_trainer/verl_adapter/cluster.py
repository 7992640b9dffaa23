"""The run's Ray cluster and data queue, started before verl is imported: they begin while this process imports."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import ray
import transfer_queue as tq
from omegaconf import DictConfig, OmegaConf

from dapo_core.jobspec import DAPOJobSpec
from dapo_core.naming import Role
from dapo_trainer.doctor import gpus
from dapo_trainer.process.fork_server import as_python
from dapo_trainer.verl_adapter import packed_rows
from dapo_trainer.verl_adapter.ray_processes import without_unused
from dapo_trainer.verl_config.placement import NODE_RESOURCE

LOOK_SECONDS: Final = 0.2


class Cluster:
    def __init__(self, config: DictConfig) -> None:
        init = OmegaConf.to_container(config.ray_kwargs.ray_init, resolve=True)
        assert isinstance(init, dict)
        with as_python(), without_unused():
            ray.init(**{str(key): value for key, value in init.items()})
        self._error: BaseException | None = None
        self._queue = threading.Thread(target=self._start_queue, args=(config,), name="start-queue", daemon=True)
        self._queue.start()

    def _start_queue(self, config: DictConfig) -> None:
        try:
            packed_rows.install()
            tq.init(config.transfer_queue)
        except BaseException as error:
            self._error = error

    def queue_ready(self) -> None:
        """Wait for the queue; raises what its start raised. On several nodes it has to be placed before the others
        join: what it saves with a checkpoint lies on this node's disk then."""
        self._queue.join()
        if self._error is not None:
            raise self._error

    def trainer_gpus(self) -> Sequence[gpus.Gpu] | None:
        """Those of one trainer pod, as its driver reports them; None when it does not answer."""
        asked = ray.remote(gpus.query).options(num_cpus=0, resources={NODE_RESOURCE["trainer"]: 0.001})
        found: Sequence[gpus.Gpu] | None = ray.get(asked.remote())
        return found

    def close(self) -> None:
        tq.close()
        ray.shutdown()


def wait_for(
    nodes: Mapping[str, int], waiting: Callable[[str], None], check: Callable[[], None] = lambda: None
) -> None:
    """Wait until the job's other pods have joined: `nodes` are the amounts of Ray's resources that they bring.

    `waiting` is called with what is missing, each time this changes; what `check` raises ends the wait. The operator
    limits how long a job waits for pods.
    """
    said = ""
    while missing := _missing(nodes, ray.cluster_resources()):
        check()
        if missing != said:
            said = missing
            waiting(f"waiting for pods: {missing}")
        time.sleep(LOOK_SECONDS)


def joined_pods(spec: DAPOJobSpec, role: Role) -> int:
    """How many pods of a role are part of the cluster."""
    return int(ray.cluster_resources().get(NODE_RESOURCE[role], 0)) // spec.topology.layout.slots_per_pod(role)


def _missing(nodes: Mapping[str, int], here: Mapping[str, float]) -> str:
    """The part of `nodes` that has not joined yet, as a phrase; empty when all have."""
    return ", ".join(
        f"{here.get(name, 0):g} of {count} {name} slots" for name, count in nodes.items() if here.get(name, 0) < count
    )
