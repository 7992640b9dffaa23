"""A checkpoint's files on the disks of other pods: each trainer pod uploads what its FSDP ranks wrote, and restores it.

verl's ranks save and load under the same path, each on its own machine. The driver's part, with the position in the
data and the queue, is beside it; together they are one checkpoint with one manifest.
"""

import shutil
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from dapo_core.errors import StoreError
from dapo_core.objectstore import open_store
from dapo_core.parallel import give_way
from dapo_core.run.checkpoint import FileEntry, Manifest
from dapo_trainer.checkpoints.checkpoint_files import corrupt, fetch, staged
from dapo_trainer.checkpoints.checkpoint_store import CheckpointStore
from dapo_trainer.checkpoints.fetching import fetch_files, remove_weights
from dapo_trainer.checkpoints.restore import Restored
from dapo_trainer.verl_adapter.checkpoint_parts import ACTOR
from dapo_trainer.verl_adapter.resharding import EXTRA, MODEL, load, needed, shard_file, shards_in, totals_in

_BESIDE: Final = "beside"


@dataclass(frozen=True)
class World:
    """The FSDP ranks of this attempt, and over how many of them a tensor is sharded (fewer when it is replicated)."""

    ranks: int
    shards: int

    @classmethod
    def of(cls, ranks: int, fsdp_size: int) -> "World":
        """`fsdp_size` as verl has it: negative for all ranks."""
        return cls(ranks, ranks if fsdp_size < 0 else min(fsdp_size, ranks))


class _Files:
    """The checkpoint files of one pod, as a Ray actor on it."""

    def __init__(self, store_url: str, run_id: str, attempt: int) -> None:
        self._checkpoints, self._attempt = CheckpointStore(open_store(store_url), run_id), attempt
        self._stored: Path | None = None
        self._told = threading.Condition()
        self._weights: dict[tuple[Path, int], Path | None] = {}

    def put(self, step: int, folder: str) -> Sequence[FileEntry]:
        give_way()  # nothing is being restored: this pod's ranks train now
        if self._stored is not None and self._stored != Path(folder):
            shutil.rmtree(self._stored, ignore_errors=True)  # committed by now, or abandoned
        self._stored = Path(folder)
        return self._checkpoints.put_files(step, Path(folder), self._attempt, give=True)

    def restore(self, origin: Restored, ranks: frozenset[int], world: World) -> None:
        manifest, target, store = origin.manifest, origin.folder, open_store(origin.store_url)
        before = staged(target)
        shutil.rmtree(target, ignore_errors=True)
        try:
            if manifest.ranks in (None, world.ranks):
                entries = [entry for entry in manifest.files if entry.rank is None or entry.rank in ranks]
            else:
                first = _first_shard(manifest)
                fetch(store, manifest, first, before, ())
                entries = _read_by(ranks, world, manifest, before / first.path)
            fetch_files(store, manifest, entries, target, [before], lambda _, folder: self._tell(origin, folder))
        except OSError as error:
            raise StoreError(f"The checkpoint cannot be written to {target}: {error.strerror}.") from error
        finally:
            self._tell(origin, None)
            shutil.rmtree(before, ignore_errors=True)

    @ray.method(concurrency_group=_BESIDE)
    def weights(self, origin: Restored) -> Path | None:
        """Where the weights are that `restore` brings, once they have arrived. None: they never do."""
        with self._told:
            self._told.wait_for(lambda: _key(origin) in self._weights)
            return self._weights[_key(origin)]

    def _tell(self, origin: Restored, weights: Path | None) -> None:
        with self._told:
            self._weights.setdefault(_key(origin), weights)
            self._told.notify_all()

    def remove_weights(self, origin: Restored) -> None:
        """They have been loaded, or are with the other files."""
        remove_weights(origin.folder.parent)


class OtherNodes:
    """The pods, other than the driver's, on which FSDP ranks run."""

    def __init__(self, store_url: str, run_id: str, attempt: int, workers: Sequence[Any], fsdp_size: int = -1) -> None:
        """`workers`: the ranks' actors, by rank; `fsdp_size`: verl's."""
        self._world = World.of(len(workers), fsdp_size)
        here = ray.get_runtime_context().get_node_id()
        nodes = ray.get([worker.__ray_call__.remote(_node) for worker in workers])
        self._ranks = {node: frozenset(r for r, at in enumerate(nodes) if at == node) for node in {*nodes} - {here}}
        self._restoring: tuple[Restored, list[Any]] | None = None
        self._files = {node: _actor_on(node).remote(store_url, run_id, attempt) for node in self._ranks}

    def put(self, step: int, folder: Path) -> Sequence[FileEntry]:
        """Make each pod store its files of `folder`. Returns their entries. Raises StoreError, CheckpointError."""
        stored = _all([files.put.remote(step, str(folder)) for files in self._files.values()])
        return [entry for entries in stored for entry in entries]

    def begin_restore(self, origin: Restored) -> None:
        """Let each pod fetch the files of its ranks to the same folder as here."""
        calls = [(self._files[node], ranks) for node, ranks in self._ranks.items()]
        self._restoring = origin, [files.restore.remote(origin, ranks, self._world) for files, ranks in calls]

    def wait_for_weights(self, origin: Restored) -> Path | None:
        """Wait until each pod has the files that its ranks load first. Returns the folder in which they are on each;
        None when all files have arrived, or a pod has failed."""
        calls = self._begun(origin)
        folders = {*_all([files.weights.remote(origin) for files in self._files.values()])}
        arrived, _ = ray.wait(calls, num_returns=len(calls), timeout=0)
        return folders.pop() if len(folders) == 1 and len(arrived) < len(calls) else None

    def restore(self, origin: Restored) -> None:
        """Wait until each pod has the files of its ranks, and begin unless that has been done. Raises StoreError,
        CheckpointError."""
        _all(self._begun(origin))
        _all([files.remove_weights.remote(origin) for files in self._files.values()])

    def _begun(self, origin: Restored) -> list[Any]:
        if self._restoring is None or self._restoring[0] != origin:
            self.begin_restore(origin)
        assert self._restoring is not None
        return self._restoring[1]


def _key(origin: Restored) -> tuple[Path, int]:
    return origin.folder, origin.manifest.keyed_attempt


def _first_shard(manifest: Manifest) -> FileEntry:
    """The model's shard of rank 0, which tells the shape of every tensor. Raises CheckpointError."""
    name = f"{ACTOR}/{shard_file(MODEL, manifest.ranks or 1, 0)}"
    found = next((entry for entry in manifest.files if entry.path == name), None)
    if found is None:
        raise corrupt(manifest, f"{name} is missing")
    return found


def _read_by(ranks: frozenset[int], world: World, manifest: Manifest, first: Path) -> list[FileEntry]:
    """The files that `ranks` read of a checkpoint of another number of them. `first`: the model's shard of rank 0."""
    state, saved = load(first), manifest.ranks or 1
    shards = needed(totals_in(state), world.shards, shards_in(state), {rank % world.shards for rank in ranks})
    extra = {rank % saved for rank in ranks}
    return [
        entry
        for entry in manifest.files
        if entry.rank is None or entry.rank in (extra if f"/{EXTRA}_" in entry.path else shards)
    ]


def _node(_worker: Any) -> str:
    node: str = ray.get_runtime_context().get_node_id()
    return node


def _actor_on(node: str) -> Any:
    where = NodeAffinitySchedulingStrategy(node, soft=False)
    return ray.remote(concurrency_groups={_BESIDE: 1})(_Files).options(num_cpus=0, scheduling_strategy=where)


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
