"""A checkpoint's files on other pods' disks: each trainer pod stores what its FSDP ranks wrote, and brings it back.

verl's ranks save and load under one path, each on the machine it runs on. The driver's own part, with the data's
position and the queue, lies beside it; together they are one checkpoint with one manifest.
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
from dapo_trainer.checkpoints.files import fetch
from dapo_trainer.checkpoints.store import CheckpointStore

WORKERS: Final = 4


@dataclass(frozen=True)
class Origin:
    """A checkpoint and the store it lies in."""

    store_url: str
    manifest: Manifest


class _Files:
    """The checkpoint files of one pod, as a Ray actor on it."""

    def __init__(self, store_url: str, run_id: str) -> None:
        self._checkpoints = CheckpointStore(open_store(store_url), run_id)
        self._stored: Path | None = None

    def put(self, step: int, folder: str) -> Sequence[FileEntry]:
        give_way()  # nothing is brought any more: this pod's ranks train beside it
        if self._stored is not None and self._stored != Path(folder):
            shutil.rmtree(self._stored, ignore_errors=True)  # committed by now, or given up
        self._stored = Path(folder)
        return self._checkpoints.put_files(step, Path(folder), give=True)

    def bring(self, origin: Origin, ranks: frozenset[int], folder: str) -> None:
        entries = [entry for entry in origin.manifest.files if entry.rank is None or entry.rank in ranks]
        target = Path(folder)
        shutil.rmtree(target, ignore_errors=True)
        store = open_store(origin.store_url)
        try:
            parallel(partial(fetch, store, origin.manifest, folder=target, caches=()), entries, WORKERS)
        except OSError as error:
            raise StoreError(f"The checkpoint can not be written to {target}: {error.strerror}.") from error


class OtherNodes:
    """The pods, other than the driver's, on which FSDP ranks run."""

    def __init__(self, store_url: str, run_id: str, workers: Sequence[Any]) -> None:
        """`workers`: the ranks' actors, by rank."""
        here = ray.get_runtime_context().get_node_id()
        places = ray.get([worker.__ray_call__.remote(_node) for worker in workers])
        self._ranks = {node: frozenset(r for r, at in enumerate(places) if at == node) for node in {*places} - {here}}
        self._files = {node: _actor_on(node).remote(store_url, run_id) for node in self._ranks}

    def put(self, step: int, folder: Path) -> Sequence[FileEntry]:
        """Have each pod store its files of `folder`; what they are. Raises StoreError, CheckpointError."""
        stored = _all([files.put.remote(step, str(folder)) for files in self._files.values()])
        return [entry for entries in stored for entry in entries]

    def bring(self, origin: Origin, folder: Path) -> None:
        """Have each pod bring the files of its ranks to `folder`. Raises StoreError, CheckpointError."""
        _all([self._files[node].bring.remote(origin, ranks, str(folder)) for node, ranks in self._ranks.items()])


def _node(_worker: Any) -> str:
    node: str = ray.get_runtime_context().get_node_id()
    return node


def _actor_on(node: str) -> Any:
    return ray.remote(_Files).options(num_cpus=0, scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False))


def _all(calls: Sequence[Any]) -> list[Any]:
    """The answers. An error of the store's comes as it was raised there, not as Ray's wrapping of it."""
    try:
        answers: list[Any] = ray.get(list(calls))
        return answers
    except ray.exceptions.RayTaskError as error:
        cause = error.cause
        if isinstance(cause, StoreError):
            raise type(cause)(str(cause)) from error
        raise
