"""Attention over packed sequences on CPUs: in buckets of similar length, padded to the longest of their bucket.

A packed row with one block-diagonal mask would cost the square of all its tokens, and a call for each sequence more
time in Python than in the kernel. Padding goes to the right, where causal attention does not see it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import torch
from torch.nn.functional import scaled_dot_product_attention

# Of a bucket's longest sequence, the least that another of it must have: at most a third of padding is added.
FILLED: Final = 0.75
# Tokens up to which sequences share a bucket whatever their length: attention is the smallest part of their cost.
SHORT: Final = 64


@dataclass(frozen=True)
class LengthBucket:
    """Some of a row's sequences: where their tokens are in the row, and where in a grid [sequences, longest].

    `tokens`, `slots`: int64 [tokens of the bucket]; `lengths`: int64 [sequences].
    """

    tokens: torch.Tensor
    slots: torch.Tensor
    lengths: torch.Tensor
    longest: int

    @classmethod
    def of(cls, begins: torch.Tensor, lengths: torch.Tensor) -> "LengthBucket":
        """`begins`, `lengths`: int64 [sequences]."""
        longest = int(lengths.max())
        sequence = torch.repeat_interleave(lengths)
        place = torch.arange(len(sequence)) - (lengths.cumsum(0) - lengths)[sequence]
        return cls(begins[sequence] + place, sequence * longest + place, lengths, longest)

    def padded(self, part: torch.Tensor) -> torch.Tensor:
        """[tokens of the row, heads, width] to [sequences, heads, longest, width], zero where there is no token."""
        grid = part.new_zeros(len(self.lengths) * self.longest, *part.shape[1:])
        grid = grid.index_copy(0, self.slots, part.index_select(0, self.tokens))
        return grid.unflatten(0, (len(self.lengths), self.longest)).transpose(1, 2)

    def packed(self, grid: torch.Tensor) -> torch.Tensor:
        """The reverse: [tokens of the bucket, heads, width], in the order of `tokens`."""
        return grid.transpose(1, 2).flatten(0, 1).index_select(0, self.slots)

    def mask(self, window: tuple[int, int]) -> torch.Tensor | None:
        """Bool, true where a token attends: `window` tokens back and ahead, -1 all. None for all that precede it."""
        place = torch.arange(self.longest)
        if window == (-1, -1):
            return (place < self.lengths[:, None])[:, None, None]
        if window[0] < 0 or window[0] >= self.longest - 1:
            return None
        distance = place[:, None] - place[None, :]
        return (distance >= 0) & (distance <= window[0])


@dataclass(frozen=True)
class Buckets:
    """All sequences of a row; `order`: int64 [tokens], where each token is in the buckets one after the other."""

    each: tuple[LengthBucket, ...]
    order: torch.Tensor

    @classmethod
    def of(cls, bounds: torch.Tensor) -> "Buckets":
        """`bounds`: int [sequences + 1], where the sequences begin and end; none is empty."""
        bounds = bounds.long()
        lengths, by_length = bounds.diff().sort(descending=True, stable=True)
        groups = by_length.split(list(_sizes(lengths.tolist())))
        each = tuple(LengthBucket.of(bounds[group], bounds.diff()[group]) for group in groups)
        return cls(each, torch.cat([bucket.tokens for bucket in each]).argsort())

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        scaling: float | None = None,
        window: tuple[int, int] = (-1, 0),
    ) -> torch.Tensor:
        """[tokens, heads, width] each, key and value with as many heads as query or a divisor; returns query's shape.

        `window`: how many tokens of its own sequence a token sees back and ahead, -1 for all.
        """
        outputs = []
        for bucket in self.each:
            queries, keys, values = (bucket.padded(part) for part in (query, key, value))
            mask = bucket.mask(window)
            attended = scaled_dot_product_attention(
                queries, keys, values, attn_mask=mask, is_causal=mask is None, scale=scaling, enable_gqa=True
            )
            outputs.append(bucket.packed(attended))
        return torch.cat(outputs).index_select(0, self.order)


def _sizes(lengths: list[int]) -> Iterator[int]:
    """How many sequences each bucket has; `lengths` from the longest to the shortest."""
    size, longest = 0, lengths[0]
    for length in lengths:
        if size and longest > SHORT and length < FILLED * longest:
            yield size
            size, longest = 0, length
        size += 1
    yield size
