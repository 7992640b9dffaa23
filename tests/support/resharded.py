"""Trains a tiny model on one number of FSDP ranks after the other, each going on from the checkpoint of the one before;
with its whole weights, then with LoRA adapters.

A process of its own: it imports the engine once, and forks a gloo process for each rank.
"""

import os
import sys
from pathlib import Path
from typing import Any

import engines

ORDER = (1, 2, 4, 2)
ADAPTERS = "adapters"


def engine(mesh_ranks: int, adapters: bool) -> Any:
    """ShardedEngine around a tiny sharded model, without what only a run has."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from transformers import Qwen2Config, Qwen2ForCausalLM
    from verl.utils.checkpoint.fsdp_checkpoint_manager import FSDPCheckpointManager

    from dapo_trainer.verl_adapter.sharded_engine import ShardedEngine

    # No dimension is a multiple of four, and some have fewer rows than there are ranks.
    sizes = {"hidden_size": 6, "intermediate_size": 7, "vocab_size": 13, "head_dim": 2}
    config = Qwen2Config(num_hidden_layers=2, num_attention_heads=3, num_key_value_heads=1, **sizes)
    torch.manual_seed(mesh_ranks)  # each world would begin from other weights
    model = Qwen2ForCausalLM(config)
    layers = model.model.layers
    if adapters:
        from peft import LoraConfig, get_peft_model

        # As verl makes them; three rows of an adapter are fewer than four ranks.
        lora = LoraConfig(task_type="CAUSAL_LM", r=3, lora_alpha=6, target_modules="all-linear", bias="none")
        model.enable_input_require_grads()
        model = get_peft_model(model, lora)
    mesh = init_device_mesh("cpu", (mesh_ranks,), mesh_dim_names=("fsdp",))
    for layer in layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    made = ShardedEngine.__new__(ShardedEngine)
    made.module, made._is_offload_param, made._is_offload_optimizer = model, False, False
    made._uses_fsdp2_cpu_offload_policy = True
    made.optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    made.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(made.optimizer, lambda step: 1 / (step + 1))
    made.checkpoint_manager = FSDPCheckpointManager(model, made.optimizer, made.lr_scheduler)
    return made


def whole(made: Any) -> dict[str, Any]:
    """Weights, moments and schedule, gathered from all ranks."""
    from torch.distributed.tensor import DTensor

    def full(value: Any) -> Any:
        return value.full_tensor().clone() if isinstance(value, DTensor) else value

    moments = made.optimizer.state_dict()
    return {
        "weights": {name: full(value) for name, value in made.module.state_dict().items()},
        "moments": {f"{i}.{name}": full(v) for i, each in moments["state"].items() for name, v in each.items()},
        "groups": moments["param_groups"],
        "schedule": made.lr_scheduler.state_dict(),
    }


def differences(one: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """Names of what is not the same to the last bit."""
    import torch

    names = [f"{kind}.{name}" for kind in ("weights", "moments") for name in one[kind].keys() ^ other[kind].keys()]
    for kind in ("weights", "moments"):
        names += [f"{kind}.{name}" for name, v in one[kind].items() if not torch.equal(v, other[kind].get(name))]
    return names + [kind for kind in ("groups", "schedule") if one[kind] != other[kind]]


def load_in_parts(made: Any, early: Path, before: Path) -> None:
    """The weights from a folder that has nothing else, then the rest."""
    from dapo_trainer.verl_adapter import checkpoint_parts

    early.mkdir(parents=True)
    for file in [*before.glob("model_*.pt"), before / "fsdp_config.json"]:
        os.link(file, early / file.name)
    for folder, parts in ((early, checkpoint_parts.WEIGHTS), (before, checkpoint_parts.REST)):
        checkpoint_parts._remember(None, parts)
        made.load_checkpoint(str(folder))
    checkpoint_parts._remember(None, checkpoint_parts.ALL)


def rank_main(folder: Path, world: int, rank: int, ranks: int, adapters: bool) -> None:
    """One rank of the world number `world`: resume, compare with what was saved, train, save."""
    import torch
    from torch import distributed

    rendezvous = distributed.FileStore(str(folder / f"rendezvous-{world}"), ranks)
    distributed.init_process_group("gloo", store=rendezvous, rank=rank, world_size=ranks)
    made = engine(ranks, adapters)
    if world:
        before = folder / f"global_step_{world - 1}" / "actor"
        if world % 2:
            load_in_parts(made, folder / f"early-{world}-{rank}" / "actor", before)
        else:
            made.load_checkpoint(str(before))
        differing = differences(torch.load(folder / f"whole-{world - 1}.pt"), whole(made))
        if differing:
            raise SystemExit(f"World {world}, {ranks} ranks: {differing}")
    for step in range(2):
        tokens = torch.arange(8).reshape(2, 4) + world + step
        made.module(input_ids=tokens, labels=tokens).loss.backward()
        made.optimizer.step()
        made.optimizer.zero_grad()
        made.lr_scheduler.step()
    made.checkpoint_manager.save_checkpoint(str(folder / f"global_step_{world}" / "actor"), None, world)
    saved = whole(made)
    if rank == 0:
        torch.save(saved, folder / f"whole-{world}.pt")
    distributed.barrier()


def main(folder: Path) -> int:
    """Returns 0 when every world went on from exactly what the one before had saved."""
    engines.load("dapo_trainer.verl_adapter.rank_extensions")
    return 0 if all(_worlds(folder / kind, kind) for kind in ("weights", ADAPTERS)) else 1


def _worlds(folder: Path, kind: str) -> bool:
    folder.mkdir()
    for world, ranks in enumerate(ORDER):
        children = []
        for rank in range(ranks):
            child = os.fork()
            if child == 0:
                rank_main(folder, world, rank, ranks, kind == ADAPTERS)
                os._exit(0)
            children.append(child)
        if any(os.waitpid(child, 0)[1] for child in children):
            return False
        print(f"{kind} on {ranks} ranks", flush=True)
    return True


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
