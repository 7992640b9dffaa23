"""Ends the processes of an engine whose server may be dead: they would keep their memory, and a GPU's."""

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import psutil
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy


@dataclass(frozen=True)
class EngineProcess:
    """A process of a node; `started` tells it from a later one of the same id."""

    pid: int
    started: float

    @classmethod
    def of(cls, pid: int) -> "EngineProcess":
        """The running process of this id. Raises psutil.NoSuchProcess."""
        return cls(pid, psutil.Process(pid).create_time())


def kill_engine(node: str, processes: Sequence[EngineProcess]) -> None:
    """Kill these processes on a node, and what they have started. Without effect when the node is gone."""
    if not any(entry["NodeID"] == node and entry["Alive"] for entry in ray.nodes()):
        return
    here = NodeAffinitySchedulingStrategy(node_id=node, soft=False)
    with contextlib.suppress(ray.exceptions.RayError):
        ray.get(ray.remote(kill_trees).options(num_cpus=0, scheduling_strategy=here).remote(processes))


def kill_trees(processes: Iterable[EngineProcess]) -> None:
    """Kill processes of this machine, with all below them. One that is gone is no error."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            parent = psutil.Process(process.pid)
            if parent.create_time() == process.started:
                for each in [*parent.children(recursive=True), parent]:
                    with contextlib.suppress(psutil.NoSuchProcess):
                        each.kill()
