"""Checkpoints as verl's FSDP leaves them, made without training: for tests of what is done with them."""

import json
from pathlib import Path

import torch
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import Qwen2ForCausalLM, Qwen2Tokenizer


def sharded(policy: Qwen2ForCausalLM, rank: int, ranks: int) -> dict[str, object]:
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
    actor = folder / "actor"
    policy.config.architectures = ["Qwen2ForCausalLM"]
    policy.config.save_pretrained(actor / "huggingface")
    text.save_pretrained(actor / "huggingface")
    (actor / "fsdp_config.json").write_text(json.dumps({"FSDP_version": 2, "world_size": ranks}))
    for rank in range(ranks):
        torch.save(sharded(policy, rank, ranks), actor / f"model_world_size_{ranks}_rank_{rank}.pt")
        (actor / f"optim_world_size_{ranks}_rank_{rank}.pt").write_bytes(b"moments")
    (folder / "data.pt").write_bytes(b"position")
    return folder
