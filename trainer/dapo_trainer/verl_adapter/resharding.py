"""FSDP2 shards for another number of ranks than saved them: each rank reads the rows that it is to hold.

verl saves a file per rank, and a rank loads the file of its own number. `torch.chunk` decides which rows of a tensor a
rank holds, so the rows of a rank lie in a few neighboring files of the checkpoint, which are memory-mapped: no rank
holds more than its own shard, and nothing is sent between ranks. Values are copied, never computed.
"""

import json
import shutil
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import torch
from torch.distributed.tensor import DTensor, Shard

from dapo_core.errors import CheckpointError
from dapo_trainer.verl_adapter.checkpoint_parts import ALL, WEIGHTS

MODEL: Final = "model"
OPTIMIZER: Final = "optim"
EXTRA: Final = "extra_state"
CONFIG: Final = "fsdp_config.json"
Load = Callable[[int], Mapping[str, Any]]
"""The contents of a saved rank's file."""


def shard_file(kind: str, ranks: int, rank: int) -> str:
    """verl's name for the file of one rank."""
    return f"{kind}_world_size_{ranks}_rank_{rank}.pt"


def saved_ranks(folder: Path) -> int | None:
    """How many ranks saved the folder, by verl's own note; None when there is none.

    Not by the names of its files: other ranks may be writing theirs there.
    """
    try:
        return int(json.loads((folder / CONFIG).read_text())["world_size"])
    except (OSError, ValueError, KeyError):
        return None


def load(file: Path) -> dict[str, Any]:
    """A shard's tensors, memory-mapped. Whoever can write a checkpoint must not run code here.

    Raises CheckpointError when the file is missing or is not one of tensors.
    """
    try:
        loaded: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
        return loaded
    except Exception as error:  # torch raises many kinds for what is not a file of its own
        raise CheckpointError(f"{file} cannot be read as a shard of a checkpoint ({error}).") from error


@dataclass(frozen=True)
class Rows:
    """The rows [start, end) of a tensor."""

    start: int
    end: int

    def within(self, other: "Rows") -> slice:
        """Which rows of `other` these are, counted from its start; empty when they share none."""
        start = max(self.start, other.start)
        return slice(start - other.start, max(min(self.end, other.end), start) - other.start)


def rows_of(rank: int, ranks: int, total: int) -> Rows:
    """The rows of a tensor of `total` rows that a rank holds: chunks of equal size, the last ones short or empty."""
    size = -(-total // ranks)
    return Rows(min(rank * size, total), min((rank + 1) * size, total))


def holders(rank: int, ranks: int, saved: int, total: int) -> range:
    """The ranks, of `saved`, that hold the rows of one rank of `ranks`."""
    size, rows = max(1, -(-total // saved)), rows_of(rank, ranks, total)
    return range(rows.start // size, -(-rows.end // size)) if rows.end > rows.start else range(0)


def needed(totals: Iterable[int], ranks: int, saved: int, of: Iterable[int]) -> frozenset[int]:
    """The saved ranks whose shards the ranks `of` read. `totals`: rows of each tensor. The first one is always read: it
    also has what is not sharded."""
    asked = list(of)
    return frozenset({0}.union(*(holders(rank, ranks, saved, total) for total in {*totals} for rank in asked)))


def shards_in(state: Mapping[str, Any]) -> int:
    """Over how many ranks the tensors of a model's file are sharded: fewer than saved it when shards are replicated."""
    return next((int(tensor.device_mesh.shape[-1]) for tensor in state.values() if isinstance(tensor, DTensor)), 1)


def totals_in(state: Mapping[str, Any]) -> set[int]:
    """The numbers of rows of the tensors in a model's file."""
    return {tensor.shape[0] for tensor in state.values() if isinstance(tensor, DTensor) and tensor.ndim}


def reshard(
    folder: Path,
    rank: int,
    ranks: int,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | None,
    parts: Collection[str] = ALL,
) -> Sequence[Path]:
    """Write the files that verl's `rank` of `ranks` loads, from those of the ranks that saved the folder.

    `model`, `optimizer`: as FSDP2 sharded them on this rank. Returns the new files, of no use once they are loaded. The
    learning rate's schedule and the random state are those of the saved rank `rank` modulo their number.
    Raises CheckpointError when a shard is missing or does not fit the model.
    """
    saved = saved_ranks(folder)
    if saved is None:
        raise CheckpointError(f"{folder} has no shards of a model.")
    files = {kind: folder / shard_file(kind, ranks, rank) for kind in (MODEL, OPTIMIZER, EXTRA)}
    source = folder / shard_file(EXTRA, saved, rank % saved)
    if source.is_file():
        shutil.copyfile(source, files[EXTRA])
    states = cache(lambda each: load(folder / shard_file(MODEL, saved, each)))
    shards = shards_in(states(0))
    if WEIGHTS <= {*parts}:
        target = model.state_dict()
        torch.save({name: _taken(states, (name,), target.get(name), shards) for name in states(0)}, files[MODEL])
    if optimizer is not None and (folder / shard_file(OPTIMIZER, saved, 0)).is_file():
        moments = cache(lambda each: load(folder / shard_file(OPTIMIZER, saved, each)))
        torch.save(_moments(moments, optimizer, shards), files[OPTIMIZER])
    return [file for file in files.values() if file.is_file()]


def _moments(load_rank: Load, optimizer: torch.optim.Optimizer, shards: int) -> dict[str, Any]:
    """The optimizer's state dict, which numbers the parameters in the order of its groups."""
    first = load_rank(0)
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    state = {
        index: {name: _taken(load_rank, ("state", index, name), parameters[index], shards) for name in values}
        for index, values in first["state"].items()
    }
    return {**first, "state": state}


def _taken(load_rank: Load, path: Sequence[Any], like: Any, shards: int) -> Any:
    """What this rank holds of the saved value at `path`, sharded as `like` is."""
    saved = _at(load_rank(0), path)
    if not isinstance(saved, DTensor):
        return saved
    name = ".".join(str(part) for part in path)
    if not isinstance(like, DTensor) or like.shape != saved.shape:
        expected = tuple(like.shape) if isinstance(like, torch.Tensor) else type(like).__name__
        raise CheckpointError(f"{name} was saved with the shape {tuple(saved.shape)}, but the model has {expected}.")
    for placement in (saved.placements[-1], like.placements[-1]):
        if not (isinstance(placement, Shard) and placement.dim == 0):
            raise CheckpointError(f"{name} is placed as {placement}; only shards of the first dimension are resharded.")
    mesh, total = like.device_mesh, saved.shape[0]
    rank, ranks = mesh.get_local_rank(mesh.ndim - 1), int(mesh.shape[-1])
    rows, pieces = rows_of(rank, ranks, total), []
    for each in holders(rank, ranks, shards, total):
        held, local = rows_of(each, shards, total), _at(load_rank(each), path).to_local()
        if local.shape[0] != held.end - held.start:
            raise CheckpointError(f"{name} has {local.shape[0]} rows in the shard of rank {each}: the file is corrupt.")
        pieces.append(local[rows.within(held)])
    mine = torch.cat(pieces) if pieces else saved.to_local()[:0].clone()
    return DTensor.from_local(mine, mesh, like.placements, run_check=False, shape=saved.shape, stride=saved.stride())


def _at(state: Any, path: Sequence[Any]) -> Any:
    for part in path:
        state = state[part]
    return state
