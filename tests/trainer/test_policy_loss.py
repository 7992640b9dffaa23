"""The loss on hand-made numbers, against the paper's equations written out here, and verl's own."""

import math
from types import ModuleType
from typing import Any

import engines
import pytest
import torch

LOW, HIGH, DUAL = 0.2, 0.28, 10.0
EDGE = 1e-3  # how far from a boundary of the band the tokens next to it are


@pytest.fixture(scope="module")
def adapter() -> ModuleType:
    return engines.load("dapo_trainer.verl_adapter.policy_loss")


@pytest.fixture(scope="module")
def config(adapter: ModuleType) -> Any:
    from verl.workers.config import FSDPActorConfig

    return FSDPActorConfig(
        strategy="fsdp2",
        rollout_n=1,
        ppo_micro_batch_size_per_gpu=1,
        clip_ratio_low=LOW,
        clip_ratio_high=HIGH,
        clip_ratio_c=DUAL,
    )


def reference(ratio: torch.Tensor, advantage: torch.Tensor, mask: torch.Tensor, aggregation: str) -> torch.Tensor:
    """Equations 8 to 12 with the dual clip, token by token."""
    losses = []
    for r, a in zip(ratio.flatten(), advantage.flatten(), strict=True):
        objective = torch.minimum(r * a, r.clamp(1 - LOW, 1 + HIGH) * a)
        losses.append(-(torch.maximum(objective, DUAL * a) if a < 0 else objective))
    tokens = torch.stack(losses).view_as(ratio) * mask
    if aggregation == "token-mean":
        return tokens.sum() / mask.sum()
    rows = mask.sum(-1) > 0
    return (tokens.sum(-1)[rows] / mask.sum(-1)[rows]).mean()


def batch(seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Old and new log-probs, advantages and mask of six responses of unlike length, one masked whole."""
    chance = torch.Generator().manual_seed(seed)
    old = -torch.rand(6, 9, generator=chance) * 3
    new = old + torch.randn(6, 9, generator=chance) * 0.6
    advantages = torch.randn(6, 1, generator=chance).expand(6, 9).contiguous()
    lengths = torch.tensor([9, 1, 4, 0, 7, 2])
    return old, new.requires_grad_(), advantages, (torch.arange(9) < lengths[:, None]).float()


@pytest.mark.parametrize("aggregation", ["token-mean", "seq-mean-token-mean"])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_loss_and_gradient_are_the_papers(adapter: ModuleType, config: Any, aggregation: str, seed: int) -> None:
    old, new, advantages, mask = batch(seed)
    loss, _ = adapter.dapo_policy_loss(old, new, advantages, mask, aggregation, config)
    wanted = reference(torch.exp(new - old), advantages, mask, aggregation)
    torch.testing.assert_close(loss, wanted)
    [ours], [theirs] = torch.autograd.grad(loss, new), torch.autograd.grad(wanted, new)
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("aggregation", ["token-mean", "seq-mean-token-mean"])
def test_loss_is_verls_own(adapter: ModuleType, config: Any, aggregation: str) -> None:
    from verl.trainer.ppo.core_algos import compute_policy_loss_vanilla

    old, new, advantages, mask = batch(3)
    weights = torch.rand(6, 9)
    for importance in (None, weights):
        ours, metrics = adapter.dapo_policy_loss(old, new, advantages, mask, aggregation, config, importance)
        theirs, upstream = compute_policy_loss_vanilla(old, new, advantages, mask, aggregation, config, importance)
        assert torch.equal(ours, theirs)
        assert {name: metrics[name] for name in upstream} == upstream


def test_aggregations_differ_where_lengths_do(adapter: ModuleType, config: Any) -> None:
    """One long right response, one short wrong one: by tokens the long one has the greater say."""
    old = torch.zeros(2, 8)
    advantages = torch.tensor([[1.0], [-1.0]]).expand(2, 8).contiguous()
    mask = (torch.arange(8) < torch.tensor([[8], [2]])).float()
    by_token, _ = adapter.dapo_policy_loss(old, old, advantages, mask, "token-mean", config)
    by_response, _ = adapter.dapo_policy_loss(old, old, advantages, mask, "seq-mean-token-mean", config)
    assert by_token.item() == pytest.approx(-(8 - 2) / 10)
    assert by_response.item() == pytest.approx(0.0)


@pytest.mark.parametrize(
    ("advantage", "ratio", "learns", "high", "low"),
    [
        pytest.param(1.0, 1 + HIGH - EDGE, True, 0, 0, id="good token, below the upper end"),
        pytest.param(1.0, 1 + HIGH + EDGE, False, 1, 0, id="good token, above the upper end"),
        pytest.param(1.0, 1.24, True, 0, 0, id="good token, between the two ranges: clip-higher"),
        pytest.param(1.0, 1 - LOW - EDGE, True, 0, 0, id="good token that got rarer may recover"),
        pytest.param(1.0, 0.01, True, 0, 0, id="good token, far below"),
        pytest.param(-1.0, 1 - LOW + EDGE, True, 0, 0, id="bad token, above the lower end"),
        pytest.param(-1.0, 1 - LOW - EDGE, False, 0, 1, id="bad token, below the lower end"),
        pytest.param(-1.0, 1 + HIGH + EDGE, True, 0, 0, id="bad token that got likelier is pressed back"),
        pytest.param(-1.0, DUAL - EDGE, True, 0, 0, id="bad token, below the dual clip"),
        pytest.param(-1.0, DUAL + EDGE, False, 0, 0, id="bad token, above the dual clip"),
        pytest.param(0.0, 3.0, False, 0, 0, id="no advantage, above"),
        pytest.param(0.0, 0.1, False, 0, 0, id="no advantage, below"),
        pytest.param(1.0, 1.0, True, 0, 0, id="good token, unchanged"),
        pytest.param(-1.0, 1.0, True, 0, 0, id="bad token, unchanged"),
    ],
)
def test_the_band(
    adapter: ModuleType, config: Any, advantage: float, ratio: float, learns: bool, high: int, low: int
) -> None:
    new = torch.tensor([[math.log(ratio)]], requires_grad=True)
    old, one = torch.zeros(1, 1), torch.ones(1, 1)
    loss, metrics = adapter.dapo_policy_loss(old, new, one * advantage, one, "token-mean", config)
    [gradient] = torch.autograd.grad(loss, new)
    assert (gradient.item() != 0) is learns
    if learns:
        assert gradient.item() == pytest.approx(-advantage * ratio, rel=1e-4)
    assert (metrics[adapter.CLIP_FRACTION_HIGH], metrics[adapter.CLIP_FRACTION_LOW]) == (high, low)


def test_clip_fractions_count_trained_tokens_only(adapter: ModuleType, config: Any) -> None:
    ratios = torch.tensor([[1.5, 1.5, 1.0, 0.5], [0.5, 1.0, 1.5, 0.5]])
    advantages = torch.tensor([[1.0], [-1.0]]).expand(2, 4).contiguous()
    mask = torch.tensor([[1.0, 0.0, 1.0, 1.0], [1.0, 1.0, 0.0, 0.0]])
    _, metrics = adapter.dapo_policy_loss(torch.zeros(2, 4), ratios.log(), advantages, mask, "token-mean", config)
    assert metrics[adapter.CLIP_FRACTION_HIGH] == pytest.approx(1 / 5)
    assert metrics[adapter.CLIP_FRACTION_LOW] == pytest.approx(1 / 5)


def test_group_advantage_is_the_papers(adapter: ModuleType) -> None:
    """Equation 9: the reward less its group's mean, over its group's deviation."""
    from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage

    rewards = [1.0, -1.0, -1.0, 0.5, 1.0, -1.0]
    groups = ["a", "a", "a", "a", "b", "b"]
    mask = torch.ones(6, 3)
    token_rewards = torch.zeros(6, 3)
    token_rewards[:, -1] = torch.tensor(rewards)
    advantages, _ = compute_grpo_outcome_advantage(token_rewards, mask, _ids(groups))
    for index, (reward, group) in enumerate(zip(rewards, groups, strict=True)):
        members = torch.tensor([r for r, g in zip(rewards, groups, strict=True) if g == group])
        wanted = (reward - members.mean()) / (members.std() + 1e-6)
        torch.testing.assert_close(advantages[index], wanted.expand(3), rtol=1e-4, atol=1e-4)


def _ids(groups: list[str]) -> Any:
    import numpy

    return numpy.array(groups, dtype=object)
