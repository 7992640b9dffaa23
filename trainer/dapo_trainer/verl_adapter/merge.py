"""Merges the FSDP shards of a checkpoint with verl's model merger, in the dtype of the model, adapters included."""

import json
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
        names, dtype = list(shards[0]), self.model_config.dtype or torch.bfloat16
        # A weight that gets an adapter is rounded after that, as on its way to vLLM.
        exact = {name: torch.float32 for name in names if _LORA in name or name.endswith(_BASE)}
        merged = {
            name: self._merged(name, [shard.pop(name) for shard in shards], exact.get(name, dtype)) for name in names
        }
        return with_adapters(merged, _adapter_scale(folder), dtype) if exact else merged

    def _merged(self, name: str, parts: list[Any], dtype: torch.dtype) -> torch.Tensor:
        if not isinstance(parts[0], DTensor):
            return merge_non_dtensor_shards(name, parts).to(dtype)
        # The last placement is the sharded one: a replicated dimension before it repeats the same shards.
        pieces = [part.to_local().to(dtype) for part in parts]
        return self._merge_by_placement(pieces, parts[0].placements[-1])


# In the names that peft gives to the weights of a model with adapters.
_PEFT, _LORA, _BASE = "base_model.model.", ".lora_", ".base_layer.weight"


def with_adapters(weights: dict[str, torch.Tensor], scale: float, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """The weights of a peft model as those of the model itself, in `dtype`: each with `scale` times its adapter."""
    plain = {}
    for name, weight in weights.items():
        if _LORA in name:
            continue
        if name.endswith(_BASE):
            layer = name.removesuffix(_BASE)
            down, up = (weights[f"{layer}.lora_{side}.default.weight"] for side in "AB")
            weight = weight + scale * (up @ down)
        plain[name.removeprefix(_PEFT).replace(".base_layer.", ".")] = weight.to(dtype)
    return plain


def _adapter_scale(actor: Path) -> float:
    """By which peft multiplies the output of a checkpoint's adapters. Raises OSError, ValueError, KeyError."""
    described = json.loads((actor / "lora_train_meta.json").read_text())
    return float(described["lora_alpha"]) / int(described["r"])


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
