"""Attention over packed rows against plain attention, in one process and over the ranks of a group.

The kernels of CUDA are not here: those of CPUs (length_buckets) stand for them. What is tested is the rest, in which a
mistake gives wrong numbers and no error: where sequences begin, which heads meet which, and what the gradients are.
"""

import multiprocessing
from types import ModuleType
from typing import Any

import engines
import pytest
import torch
from sequence_parallel import IMPORTED, WIDTH, Case, one_by_one, policy, positions, rank_main, tokens


@pytest.fixture(scope="module")
def adapter() -> ModuleType:
    return engines.load("dapo_trainer.verl_adapter.attention_varlen")


def plain(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, window: int | None = None) -> torch.Tensor:
    """One sequence in float64, written out: [heads, tokens, width] to the same."""
    key, value = (part.repeat_interleave(query.shape[0] // part.shape[0], dim=0) for part in (key, value))
    scores = query.double() @ key.double().transpose(1, 2) / WIDTH**0.5
    distance = torch.arange(query.shape[1])[:, None] - torch.arange(query.shape[1])[None, :]
    hidden = (distance < 0) | (distance >= (window or query.shape[1]))
    return scores.masked_fill(hidden, -torch.inf).softmax(-1) @ value.double()


def drawn(heads: int, tokens: int, rows: int = 1, seed: int = 0) -> torch.Tensor:
    chance = torch.Generator().manual_seed(seed)
    return torch.randn(rows, heads, tokens, WIDTH, generator=chance).requires_grad_()


def module() -> torch.nn.Module:
    return torch.nn.Module()


LENGTHS = [
    pytest.param([12], id="one sequence"),
    pytest.param([5, 1, 6], id="three packed, one of a single token"),
    pytest.param([1] * 12, id="single tokens"),
]
HEADS = [pytest.param(4, 4, id="as many"), pytest.param(4, 2, id="grouped"), pytest.param(4, 1, id="one of keys")]


@pytest.mark.parametrize("window", [pytest.param(None, id="whole"), pytest.param(3, id="sliding window")])
@pytest.mark.parametrize(("heads", "kv_heads"), HEADS)
@pytest.mark.parametrize("lengths", LENGTHS)
def test_packed_rows(adapter: ModuleType, lengths: list[int], heads: int, kv_heads: int, window: int | None) -> None:
    query, key, value = (drawn(h, 12, seed=s) for s, h in enumerate((heads, kv_heads, kv_heads)))
    out, _ = adapter.varlen_attention(
        module(), query, key, value, None, position_ids=positions(lengths), sliding_window=window
    )
    parts = zip(*(part[0].split(lengths, dim=1) for part in (query, key, value)), strict=True)
    expected = torch.cat([plain(q, k, v, window) for q, k, v in parts], dim=1).transpose(0, 1)[None]
    torch.testing.assert_close(out.double(), expected, atol=1e-5, rtol=1e-5)
    weight = torch.randn_like(out)
    ours = torch.autograd.grad((out * weight).sum(), (query, key, value))
    theirs = torch.autograd.grad((expected * weight).sum(), (query, key, value))
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    "mask",
    [
        pytest.param([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]], id="padded on the right"),
        pytest.param([[0, 0, 1, 1, 1], [0, 1, 1, 1, 1]], id="padded on the left"),
        pytest.param([[1, 1, 1, 1, 1], [0, 0, 0, 0, 0]], id="a row of padding only"),
    ],
)
def test_rows_with_padding(adapter: ModuleType, mask: list[list[int]]) -> None:
    kept = torch.tensor(mask).bool()
    query, key, value = (drawn(h, 5, rows=2, seed=s) for s, h in enumerate((4, 2, 2)))
    out, _ = adapter.varlen_attention(module(), query, key, value, kept)
    for row, here in enumerate(kept):
        alone = plain(*(part[row][:, here] for part in (query, key, value))).transpose(0, 1)
        torch.testing.assert_close(out[row, here].double(), alone, atol=1e-5, rtol=1e-5)
        assert not out[row, ~here].any()


def test_rows_without_positions_or_mask_are_whole_sequences_where_order_does_not_matter(adapter: ModuleType) -> None:
    query, key, value = (drawn(2, 5, rows=3, seed=s) for s in range(3))
    out, _ = adapter.varlen_attention(module(), query, key, value, None, is_causal=False)
    expected = torch.nn.functional.scaled_dot_product_attention(query, key, value).transpose(1, 2)
    torch.testing.assert_close(out, expected)


@pytest.mark.parametrize("checkpointing", [pytest.param(False, id="kept"), pytest.param(True, id="recomputed")])
def test_sequences_are_counted_once_for_all_layers(
    adapter: ModuleType, monkeypatch: pytest.MonkeyPatch, checkpointing: bool
) -> None:
    engines.load("dapo_trainer.verl_adapter.rank_extensions")
    counted: list[int] = []
    arrange = adapter.Buckets.of
    monkeypatch.setattr(adapter.Buckets, "of", lambda bounds: counted.append(len(bounds) - 1) or arrange(bounds))
    model = policy("dapo_varlen", case := Case(1)).train()
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    model(tokens(case), position_ids=positions(case.lengths), use_cache=False).logits.sum().backward()
    assert counted == [len(case.lengths)]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        pytest.param({"dropout": 0.1}, "dropout", id="dropout"),
        pytest.param({"query": drawn(2, 1)}, "cache", id="one token after a cache"),
        pytest.param({"attention_mask": torch.ones(1, 1, 4, 4)}, "use_remove_padding", id="a mask of scores"),
        pytest.param({}, "position_ids.*sdpa", id="a model whose layers are not told the positions"),
        pytest.param({"softcap": 50.0}, "softcap", id="a limit of the scores"),
        pytest.param({"s_aux": torch.zeros(2)}, "s_aux", id="a learned sink"),
    ],
)
def test_what_it_does_not_compute_is_refused(adapter: ModuleType, changes: dict[str, Any], words: str) -> None:
    given = {"query": drawn(2, 4), "key": drawn(2, 4), "value": drawn(2, 4), "attention_mask": None} | changes
    with pytest.raises(ValueError, match=words):
        adapter.varlen_attention(module(), **given)


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(Case(1), id="1 rank"),
        pytest.param(Case(2), id="2 ranks, which the tokens do not divide"),
        pytest.param(Case(4), id="4 ranks, 2 heads of keys"),
        pytest.param(Case(4, heads=8, kv_heads=4, lengths=(16,)), id="4 ranks, one sequence over all of them"),
    ],
)
def test_g3_a_response_over_several_ranks_has_the_log_probs_and_gradients_of_plain_attention(
    case: Case, tmp_path: Any
) -> None:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(IMPORTED))
    ends = [context.Pipe(duplex=False) for _ in range(case.ranks)]
    ranks = [
        context.Process(target=rank_main, args=(rank, case, ends[rank][1], str(tmp_path / "store")))
        for rank in range(case.ranks)
    ]
    for each in ranks:
        each.start()
    for _, ours in ends:
        ours.close()
    expected, gradient = one_by_one(case)
    for end, _ in ends:
        log_probs, grad = (torch.from_numpy(part) for part in end.recv())
        torch.testing.assert_close(log_probs, expected, atol=2e-6, rtol=1e-5)
        torch.testing.assert_close(grad, gradient, atol=1e-6, rtol=1e-4)
    for each in ranks:
        each.join()
        assert each.exitcode == 0
