"""A small model that is trained over several ranks as verl's FSDP engine does it, for tests of sequence parallelism."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import engines
import torch

engines.load("dapo_trainer.verl_adapter.rank_extensions")

# A server of forks imports these once for all ranks, of which each would take five seconds of a CPU for them.
IMPORTED = (
    "sequence_parallel",
    "verl.models.transformers.monkey_patch",
    "verl.utils.ulysses",
    "transformers.models.qwen2.modeling_qwen2",
)

WIDTH = 8


@dataclass(frozen=True)
class Case:
    """A model of 2 layers, and the lengths of the responses that are packed into one row."""

    ranks: int
    heads: int = 4
    kv_heads: int = 2
    lengths: tuple[int, ...] = (5, 1, 7)


def policy(attention: str, case: Case) -> Any:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        vocab_size=64,
        hidden_size=case.heads * WIDTH,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=case.heads,
        num_key_value_heads=case.kv_heads,
        tie_word_embeddings=False,
        attn_implementation=attention,
    )
    torch.manual_seed(0)
    return Qwen2ForCausalLM(config)


def tokens(case: Case) -> torch.Tensor:
    return torch.randint(0, 64, (1, sum(case.lengths)), generator=torch.Generator().manual_seed(1))


def positions(lengths: Sequence[int]) -> torch.Tensor:
    """Of packed sequences: [1, tokens]."""
    return torch.cat([torch.arange(length) for length in lengths])[None]


def one_by_one(case: Case) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probs of the next tokens [all tokens], and the gradient of their mean at the embedding: plain attention."""
    model = policy("eager", case)
    out = []
    for part in tokens(case).split(list(case.lengths), dim=1):
        out.append(model(part).logits[0].log_softmax(-1))
    logs = torch.cat(out)
    chosen = logs.gather(1, tokens(case).roll(-1, 1)[0][:, None])[:, 0]
    chosen.mean().backward()
    return chosen.detach(), model.model.embed_tokens.weight.grad


def rank_main(rank: int, case: Case, pipe: Any, folder: str) -> None:
    """What verl's engine does with a micro-batch: pad, slice, forward, gather; sends log-probs and gradient."""
    from verl.models.transformers.monkey_patch import apply_monkey_patch
    from verl.utils.ulysses import (
        gather_outputs_and_unpad,
        set_ulysses_sequence_parallel_group,
        ulysses_pad_and_slice_inputs,
    )

    torch.set_num_threads(1)
    store = torch.distributed.FileStore(folder, case.ranks)
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=case.ranks)
    if case.ranks > 1:
        set_ulysses_sequence_parallel_group(torch.distributed.group.WORLD)
    model = policy("dapo_varlen", case)
    apply_monkey_patch(model, ulysses_sp_size=case.ranks, use_fused_kernels=True, fused_kernels_backend="torch")
    model.gradient_checkpointing_enable({"use_reentrant": False})
    ids, spots, pad = ulysses_pad_and_slice_inputs(tokens(case), positions(case.lengths), case.ranks)
    labels, _, _ = ulysses_pad_and_slice_inputs(tokens(case).roll(-1, 1), None, case.ranks)
    out = model(ids, position_ids=spots, shift_labels=labels, return_dict=True, use_cache=False).log_probs.squeeze(0)
    if case.ranks > 1:
        out = gather_outputs_and_unpad(out, gather_dim=0, unpad_dim=0, padding_size=pad)
    out.mean().backward()
    # FSDP averages the gradients of all ranks, of which each has those of its own tokens, as many times as there are
    # ranks: verl's gather multiplies them.
    grad = model.model.embed_tokens.weight.grad
    torch.distributed.all_reduce(grad)
    pipe.send((out.detach().numpy(), (grad / case.ranks).numpy()))
    torch.distributed.destroy_process_group()
