"""Checkpoints as verl's FSDP leaves them, made without training: for tests of what is done with them."""

import json
from copy import deepcopy
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from peft.tuners.lora.layer import Linear
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import Qwen2ForCausalLM, Qwen2Tokenizer


def sharded(policy: torch.nn.Module, rank: int, ranks: int) -> dict[str, object]:
    """What FSDP leaves on one rank: chunks of the first dimension, the last one shorter or empty."""
    distributed.init_process_group("fake", store=FakeStore(), rank=rank, world_size=ranks)
    try:
        mesh = init_device_mesh("cpu", (ranks,), mesh_dim_names=("fsdp",))
        shards = {}
        for name, weight in policy.state_dict().items():
            chunks = weight.chunk(ranks)
            mine = chunks[rank] if rank < len(chunks) else weight[:0]
            shards[name] = DTensor.from_local(
                mine.clone(), mesh, [Shard(0)], run_check=False, shape=weight.shape, stride=weight.stride()
            )
        return shards
    finally:
        distributed.destroy_process_group()


def checkpoint(folder: Path, policy: Qwen2ForCausalLM, text: Qwen2Tokenizer, ranks: int) -> Path:
    """A folder as verl saves it, with what an export has no use for."""
    return _checkpoint(folder, policy, policy, text, ranks)


def adapted_checkpoint(folder: Path, policy: Qwen2ForCausalLM, text: Qwen2Tokenizer, ranks: int) -> Path:
    """As `checkpoint`, of a model with LoRA adapters that is `policy` once these are merged."""
    lora = get_peft_model(
        deepcopy(policy), LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM")
    )
    with torch.no_grad():
        for layer in lora.modules():
            if isinstance(layer, Linear):
                torch.nn.init.normal_(layer.lora_B["default"].weight, std=0.02)
                layer.base_layer.weight -= layer.get_delta_weight("default")
    saved = _checkpoint(folder, policy, lora, text, ranks)
    (saved / "actor" / "lora_train_meta.json").write_text(json.dumps({"r": 4, "lora_alpha": 8}))
    return saved


def _checkpoint(
    folder: Path, policy: Qwen2ForCausalLM, trained: torch.nn.Module, text: Qwen2Tokenizer, ranks: int
) -> Path:
    actor = folder / "actor"
    policy.config.architectures = ["Qwen2ForCausalLM"]
    policy.config.save_pretrained(actor / "huggingface")
    text.save_pretrained(actor / "huggingface")
    (actor / "fsdp_config.json").write_text(json.dumps({"FSDP_version": 2, "world_size": ranks}))
    for rank in range(ranks):
        torch.save(sharded(trained, rank, ranks), actor / f"model_world_size_{ranks}_rank_{rank}.pt")
        (actor / f"optim_world_size_{ranks}_rank_{rank}.pt").write_bytes(b"moments")
    (folder / "data.pt").write_bytes(b"position")
    return folder
