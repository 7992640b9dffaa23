"""Attention in length buckets against plain attention in float64: values and gradients."""

from itertools import accumulate
from types import ModuleType

import engines
import pytest
import torch

WIDTH = 8


@pytest.fixture(scope="module")
def module() -> ModuleType:
    return engines.load("dapo_trainer.verl_adapter.length_buckets")


def plain(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, window: tuple[int, int]) -> torch.Tensor:
    """One sequence, written out: [tokens, heads, width] to the same, in float64."""
    query, key, value = (part.double().transpose(0, 1) for part in (query, key, value))
    key, value = (part.repeat_interleave(query.shape[0] // part.shape[0], dim=0) for part in (key, value))
    scores = query @ key.transpose(1, 2) / WIDTH**0.5
    distance = torch.arange(query.shape[1])[:, None] - torch.arange(query.shape[1])[None, :]
    back, ahead = (limit if limit >= 0 else query.shape[1] for limit in window)
    return (scores.masked_fill((distance > back) | (-distance > ahead), -torch.inf).softmax(-1) @ value).transpose(0, 1)


def drawn(tokens: int, heads: int, seed: int) -> torch.Tensor:
    return torch.randn(tokens, heads, WIDTH, generator=torch.Generator().manual_seed(seed)).requires_grad_()


@pytest.mark.parametrize(
    "window",
    [
        pytest.param((-1, 0), id="causal"),
        pytest.param((2, 0), id="sliding window"),
        pytest.param((500, 0), id="window longer than a sequence"),
        pytest.param((-1, -1), id="all of the sequence"),
    ],
)
@pytest.mark.parametrize(
    ("heads", "kv_heads"),
    [pytest.param(4, 4, id="as many"), pytest.param(4, 2, id="grouped"), pytest.param(4, 1, id="one of keys")],
)
@pytest.mark.parametrize(
    ("lengths", "buckets"),
    [
        pytest.param([12], 1, id="one sequence"),
        pytest.param([1], 1, id="one token"),
        pytest.param([1] * 7, 1, id="single tokens"),
        pytest.param([5, 1, 6, 64], 1, id="short ones share a bucket"),
        pytest.param([20, 128, 1, 90, 100, 70], 3, id="three buckets, the sequences in another order"),
    ],
)
def test_packed_sequences(
    module: ModuleType, lengths: list[int], buckets: int, heads: int, kv_heads: int, window: tuple[int, int]
) -> None:
    query, key, value = (drawn(sum(lengths), h, seed) for seed, h in enumerate((heads, kv_heads, kv_heads)))
    arranged = module.Buckets.of(torch.tensor([0, *accumulate(lengths)], dtype=torch.int32))
    assert len(arranged.each) == buckets
    out = arranged.attend(query, key, value, WIDTH**-0.5, window)
    parts = zip(*(part.split(lengths) for part in (query, key, value)), strict=True)
    expected = torch.cat([plain(q, k, v, window) for q, k, v in parts])
    torch.testing.assert_close(out.double(), expected, atol=1e-5, rtol=1e-5)
    weight = drawn(sum(lengths), heads, 3).detach()
    ours = torch.autograd.grad((out * weight).sum(), (query, key, value))
    theirs = torch.autograd.grad((expected * weight).sum(), (query, key, value))
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)


def test_padding_is_at_most_a_third(module: ModuleType) -> None:
    lengths = torch.randint(module.SHORT + 1, 4096, (256,), generator=torch.Generator().manual_seed(0))
    arranged = module.Buckets.of(torch.cat((torch.zeros(1, dtype=torch.long), lengths.cumsum(0))))
    for bucket in arranged.each:
        assert 3 * len(bucket.lengths) * bucket.longest <= 4 * bucket.lengths.sum()
    assert len(arranged.each) < 20
