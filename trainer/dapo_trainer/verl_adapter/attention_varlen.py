"""Attention over packed rows with torch's own kernels, and over ranks that each hold a part of the sequence.

verl packs the responses of a micro-batch into one row without padding, and slices that row over the ranks of a
sequence-parallel group. Its own support for that (Ulysses) is patched into `flash-attn`, which has no wheel for this
torch. `torch.nn.attention.varlen` brings the same kernels with torch; on CPUs the sequences are padded in buckets.
"""

import weakref
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import torch
from torch.nn.attention.varlen import varlen_attn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import flash_attention_mask
from verl.utils.ulysses import (
    gather_heads_scatter_seq,
    gather_seq_scatter_heads,
    get_ulysses_sequence_parallel_group,
    get_ulysses_sequence_parallel_world_size,
)

from dapo_trainer.verl_adapter.length_buckets import Buckets
from dapo_trainer.verl_config.kernels import ATTENTION_KEY, VARLEN

# What transformers passes for the models that have it: a limit of the scores, and a learned sink.
_CHANGE_SCORES: Final = ("softcap", "s_aux")


@dataclass(frozen=True)
class Segments:
    """Where the sequences of a row [tokens] begin and end: `bounds` int32 [sequences + 1]; `longest` in tokens."""

    bounds: torch.Tensor
    longest: int

    @cached_property
    def buckets(self) -> Buckets:
        """How they are arranged for the kernels of CPUs."""
        return Buckets.of(self.bounds)

    @classmethod
    def starting_at(cls, starts: torch.Tensor) -> "Segments":
        """`starts`: bool [tokens], true for the first token of each sequence."""
        end = torch.tensor([starts.numel()], device=starts.device)
        bounds = torch.cat((starts.nonzero().flatten(), end)).to(torch.int32)
        return cls(bounds, int(bounds.diff().max()))


def varlen_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    is_causal: bool | None = None,
    position_ids: torch.Tensor | None = None,
    **more: Any,
) -> tuple[torch.Tensor, None]:
    """As transformers calls it: query [rows, heads, tokens, width], key and value with as many heads or a divisor.

    A token attends to those before it in its own sequence: sequences begin where `position_ids` [rows, tokens] is 0, or
    are the rows without the padding of `attention_mask` [rows, tokens]. Under sequence parallelism `tokens` are this
    rank's share. Returns [rows, tokens, heads, width] and no weights. Raises ValueError for what it does not compute.
    """
    causal = is_causal if is_causal is not None else getattr(module, "is_causal", True)
    _refuse(query, key, attention_mask, dropout, more)
    query, key, value = (_computed(part).transpose(1, 2) for part in (query, key, value))
    ranks = get_ulysses_sequence_parallel_world_size()
    if position_ids is None and attention_mask is None and (causal or ranks > 1):
        raise ValueError(
            f"{VARLEN} attention needs position_ids to tell packed sequences apart, and this model does not pass them "
            f"to its layers: set {ATTENTION_KEY} to sdpa."
        )
    if ranks > 1:
        key, value = (_one_head_a_rank(part, ranks) for part in (key, value))
        query, key, value = (gather_seq_scatter_heads(part, seq_dim=1, head_dim=2) for part in (query, key, value))
    rows, tokens = query.shape[:2]
    window = ((sliding_window or 0) - 1, 0) if causal else (-1, -1)
    query, key, value = (part.flatten(0, 1) for part in (query, key, value))
    if attention_mask is None:
        segments = _of_positions(position_ids, rows, tokens, query.device)
        out = _attend(query, key, value, segments, scaling, window)
    else:
        mask = attention_mask.bool()
        kept = mask.flatten().nonzero().flatten()
        attended = _attend(query[kept], key[kept], value[kept], _of_mask(mask), scaling, window)
        out = torch.zeros_like(query).index_copy(0, kept, attended)
    out = out.unflatten(0, (rows, tokens))
    if ranks > 1:
        out = gather_heads_scatter_seq(out, seq_dim=1, head_dim=2)
    return out, None


def _refuse(
    query: torch.Tensor, key: torch.Tensor, mask: torch.Tensor | None, dropout: float, more: dict[str, Any]
) -> None:
    for name in _CHANGE_SCORES:
        if more.get(name) is not None:
            raise ValueError(f"{VARLEN} attention does not compute this model's {name}: set {ATTENTION_KEY} to eager.")
    if dropout:
        raise ValueError(f"{VARLEN} attention has no dropout, and the model's attention_dropout is {dropout}: set 0.")
    if query.shape[2] != key.shape[2]:
        raise ValueError(f"{VARLEN} attention trains whole sequences; it does not continue a cache of keys and values.")
    if mask is not None and (mask.dim() != 2 or get_ulysses_sequence_parallel_world_size() > 1):
        raise ValueError(
            f"{VARLEN} attention takes a mask of padding [rows, tokens], and none under sequence parallelism: "
            "set actor_rollout_ref.model.use_remove_padding."
        )


def _computed(part: torch.Tensor) -> torch.Tensor:
    """In the dtype of autocast, if that is on: norms and rotary embeddings may leave float32, which no kernel takes."""
    kind = part.device.type
    if part.dtype == torch.float32 and torch.is_autocast_enabled(kind):
        return part.to(torch.get_autocast_dtype(kind))
    return part


def _one_head_a_rank(part: torch.Tensor, ranks: int) -> torch.Tensor:
    """Repeats heads [rows, tokens, heads, width] where there are fewer than ranks."""
    return part.repeat_interleave(max(ranks // part.shape[2], 1), dim=2)


def _attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    segments: Segments,
    scaling: float | None,
    window: tuple[int, int],
) -> torch.Tensor:
    """Query [tokens, heads, width], key and value alike; `window`: how far back and ahead a token sees, -1 all."""
    if query.device.type != "cpu":
        bounds, longest = segments.bounds, segments.longest
        out = varlen_attn(
            query, key, value, bounds, bounds, longest, longest, scale=scaling, window_size=window, enable_gqa=True
        )
        assert isinstance(out, torch.Tensor)
        return out
    return segments.buckets.attend(query, key, value, scaling, window)


def _of_mask(mask: torch.Tensor) -> Segments:
    """`mask`: bool [rows, tokens], true for what is kept; each row is one sequence."""
    lengths = mask.sum(dim=1)
    bounds = torch.nn.functional.pad(lengths[lengths > 0].cumsum(0), (1, 0)).to(torch.int32)
    return Segments(bounds, int(lengths.max()))


# The layers of a pass are called with the same position_ids: they are gathered and counted once, not in each layer.
_last: tuple[weakref.ref[torch.Tensor], Segments] | None = None


def _of_positions(position_ids: torch.Tensor | None, rows: int, tokens: int, device: torch.device) -> Segments:
    """`position_ids`: [rows or 1, this rank's tokens]; `tokens`: those of the whole sequence."""
    global _last
    if position_ids is None:
        return Segments.starting_at(torch.arange(rows * tokens, device=device) % tokens == 0)
    if _last is not None and _last[0]() is position_ids:
        return _last[1]
    whole = _gathered(position_ids)
    starts = (whole == 0).expand(rows, tokens).clone()
    starts[:, 0] = True
    segments = Segments.starting_at(starts.flatten())
    _last = (weakref.ref(position_ids), segments)
    return segments


def _gathered(position_ids: torch.Tensor) -> torch.Tensor:
    group, ranks = get_ulysses_sequence_parallel_group(), get_ulysses_sequence_parallel_world_size()
    if ranks == 1:
        return position_ids
    parts = [torch.empty_like(position_ids) for _ in range(ranks)]
    torch.distributed.all_gather(parts, position_ids.contiguous(), group=group)
    return torch.cat(parts, dim=-1)


def register() -> None:
    """Make the name known to transformers in this process; its masks tell padding and nothing else."""
    AttentionInterface.register(VARLEN, varlen_attention)
    AttentionMaskInterface.register(VARLEN, flash_attention_mask)
