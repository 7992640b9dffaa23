"""Merges the FSDP shards of a checkpoint with verl's model merger, in the dtype of the model."""

import shutil
from pathlib import Path
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from verl.model_merger.base_model_merger import ModelMergerConfig
from verl.model_merger.fsdp_model_merger import FSDPModelMerger, merge_non_dtensor_shards


class Merger(FSDPModelMerger):
    """verl's merger rounds every weight to bfloat16 and holds all shards in memory.

    Here a weight keeps the dtype that vLLM sampled with in training, and shards are memory-mapped: memory holds one
    whole model, and a model trained in float32 is exported in float32.
    """

    def _load_rank_zero_state_dict(self, world_size: int) -> dict[str, Any]:
        return _load(Path(self.config.local_dir) / f"model_world_size_{world_size}_rank_0.pt")

    def _load_and_merge_state_dicts(
        self, world_size: int, total_shards: int, mesh_shape: tuple[int, ...], mesh_dim_names: tuple[str, ...]
    ) -> dict[str, torch.Tensor]:
        folder = Path(self.config.local_dir)
        shards: list[dict[str, Any]] = [
            _load(folder / f"model_world_size_{world_size}_rank_{rank}.pt") for rank in range(total_shards)
        ]
        return {name: self._merged(name, [shard.pop(name) for shard in shards]) for name in list(shards[0])}

    def _merged(self, name: str, parts: list[Any]) -> torch.Tensor:
        dtype = self.model_config.dtype or torch.bfloat16
        if not isinstance(parts[0], DTensor):
            return merge_non_dtensor_shards(name, parts).to(dtype)
        # The last placement is the sharded one: a replicated dimension before it repeats the same shards.
        pieces = [part.to_local().to(dtype) for part in parts]
        return self._merge_by_placement(pieces, parts[0].placements[-1])


def _load(shard: Path) -> dict[str, Any]:
    """A shard: tensors, and the classes of their placement that `torch.distributed.tensor` allows. Whoever can write a
    checkpoint must not run code here. Raises pickle.UnpicklingError for anything else."""
    loaded: dict[str, Any] = torch.load(shard, map_location="cpu", weights_only=True, mmap=True)
    return loaded


def merge(checkpoint: Path, target: Path) -> None:
    """Write `checkpoint/actor` as a folder in Hugging Face's format. Raises what verl and torch raise."""
    actor = checkpoint / "actor"
    described = actor / "huggingface"
    config = ModelMergerConfig(
        operation="merge",
        backend="fsdp",
        local_dir=str(actor),
        target_dir=str(target),
        hf_model_config_path=str(described),
    )
    Merger(config).merge_and_save()
    # verl writes bfloat16 into the configuration whatever the weights are.
    shutil.copyfile(described / "config.json", target / "config.json")
