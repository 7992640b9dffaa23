"""A checkpoint's files on the disks of other pods: each trainer pod uploads what its FSDP ranks wrote, and restores it.

verl's ranks save and load under the same path, each on its own machine. The driver's part, with the position in the
data and the queue, is beside it; together they are one checkpoint with one manifest.
"""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from dapo_core.errors import StoreError
from dapo_core.objectstore import open_store
from dapo_core.parallel import give_way, parallel
from dapo_core.run.checkpoint import FileEntry, Manifest
from dapo_trainer.checkpoints.checkpoint_files import fetch
from dapo_trainer.checkpoints.checkpoint_store import CheckpointStore

WORKERS: Final = 4


@dataclass(frozen=True)
class Origin:
    """A checkpoint, and the store that holds it."""

    store_url: str
    manifest: Manifest


class _Files:
    """The checkpoint files of one pod, as a Ray actor on it."""

    def __init__(self, store_url: str, run_id: str) -> None:
        self._checkpoints = CheckpointStore(open_store(store_url), run_id)
        self._stored: Path | None = None

    def put(self, step: int, folder: str) -> Sequence[FileEntry]:
        give_way()  # nothing is being restored: this pod's ranks train now
        if self._stored is not None and self._stored != Path(folder):
            shutil.rmtree(self._stored, ignore_errors=True)  # committed by now, or abandoned
        self._stored = Path(folder)
        return self._checkpoints.put_files(step, Path(folder), give=True)

    def restore(self, origin: Origin, ranks: frozenset[int], folder: str) -> None:
        entries = [entry for entry in origin.manifest.files if entry.rank is None or entry.rank in ranks]
        target = Path(folder)
        shutil.rmtree(target, ignore_errors=True)
        store = open_store(origin.store_url)
        try:
            parallel(partial(fetch, store, origin.manifest, folder=target, caches=()), entries, WORKERS)
        except OSError as error:
            raise StoreError(f"The checkpoint cannot be written to {target}: {error.strerror}.") from error


class OtherNodes:
    """The pods, other than the driver's, on which FSDP ranks run."""

    def __init__(self, store_url: str, run_id: str, workers: Sequence[Any]) -> None:
        """`workers`: the ranks' actors, by rank."""
        here = ray.get_runtime_context().get_node_id()
        nodes = ray.get([worker.__ray_call__.remote(_node) for worker in workers])
        self._ranks = {node: frozenset(r for r, at in enumerate(nodes) if at == node) for node in {*nodes} - {here}}
        self._files = {node: _actor_on(node).remote(store_url, run_id) for node in self._ranks}

    def put(self, step: int, folder: Path) -> Sequence[FileEntry]:
        """Make each pod store its files of `folder`. Returns their entries. Raises StoreError, CheckpointError."""
        stored = _all([files.put.remote(step, str(folder)) for files in self._files.values()])
        return [entry for entries in stored for entry in entries]

    def restore(self, origin: Origin, folder: Path) -> None:
        """Make each pod restore the files of its ranks to `folder`. Raises StoreError, CheckpointError."""
        _all([self._files[node].restore.remote(origin, ranks, str(folder)) for node, ranks in self._ranks.items()])


def _node(_worker: Any) -> str:
    node: str = ray.get_runtime_context().get_node_id()
    return node


def _actor_on(node: str) -> Any:
    return ray.remote(_Files).options(num_cpus=0, scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False))


def _all(calls: Sequence[Any]) -> list[Any]:
    """The results. An error of the store is raised as it was there, without Ray's wrapper."""
    try:
        results: list[Any] = ray.get(list(calls))
        return results
    except ray.exceptions.RayTaskError as error:
        cause = error.cause
        if isinstance(cause, StoreError):
            raise type(cause)(str(cause)) from error
        raise
