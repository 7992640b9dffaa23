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


@pytest.fixture
def informed(config: Any) -> Any:
    """The configuration with what verl's engine adds for each mini-batch; taken back afterwards."""
    before = dict(config.global_batch_info)
    yield config
    config.global_batch_info.clear()
    config.global_batch_info.update(before)


@pytest.mark.parametrize("aggregation", ["token-mean", "seq-mean-token-mean"])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_parts_of_a_mini_batch_add_up_to_the_whole(
    adapter: ModuleType, informed: Any, aggregation: str, ranks: int
) -> None:
    """Micro-batches of unlike lengths over several ranks, as FSDP sums and averages their gradients."""
    old, new, advantages, mask = batch(5)
    rows = int((mask.sum(-1) > 0).sum())
    wanted = reference(torch.exp(new - old), advantages, mask, aggregation)
    [whole] = torch.autograd.grad(wanted, new, retain_graph=True)
    informed.global_batch_info.update(dp_size=ranks, batch_num_tokens=mask.sum().item(), global_batch_size=rows)
    parts = [
        adapter.dapo_policy_loss(
            old[i : i + 1], new[i : i + 1], advantages[i : i + 1], mask[i : i + 1], aggregation, informed
        )
        for i in range(len(old))
    ]
    total = sum(loss for loss, _ in parts) / ranks
    torch.testing.assert_close(total, wanted)
    [gradient] = torch.autograd.grad(total, new)
    torch.testing.assert_close(gradient, whole)


def test_by_tokens_a_masked_response_changes_nothing_for_the_others(adapter: ModuleType, config: Any) -> None:
    """The overlong filter under token-mean: as if the truncated response were not there."""
    old, new, advantages, mask = batch(6)
    without = [i for i in range(len(old)) if i != 3]
    assert mask[3].sum() == 0
    loss, _ = adapter.dapo_policy_loss(old, new, advantages, mask, "token-mean", config)
    rest, _ = adapter.dapo_policy_loss(
        old[without], new[without], advantages[without], mask[without], "token-mean", config
    )
    torch.testing.assert_close(loss, rest)
    assert torch.autograd.grad(loss, new)[0][3].abs().sum() == 0


def test_by_responses_the_mini_batch_keeps_its_nominal_size(adapter: ModuleType, informed: Any) -> None:
    """verl divides sequence means by the configured size: what is masked or padded weakens the step alone."""
    old, new, advantages, mask = batch(7)
    loss, _ = adapter.dapo_policy_loss(old, new, advantages, mask, "seq-mean-token-mean", informed)
    informed.global_batch_info.update(dp_size=1, batch_num_tokens=mask.sum().item(), global_batch_size=6)
    nominal, _ = adapter.dapo_policy_loss(old, new, advantages, mask, "seq-mean-token-mean", informed)
    torch.testing.assert_close(nominal, loss * 5 / 6)


@pytest.mark.parametrize("aggregation", ["token-mean", "seq-mean-token-mean"])
@pytest.mark.parametrize("told", [True, False], ids=["as the engine calls it", "alone"])
def test_a_mini_batch_batch_fully_masked_teaches_nothing(
    adapter: ModuleType, informed: Any, aggregation: str, told: bool
) -> None:
    old, new, advantages, mask = batch(8)
    if told:
        informed.global_batch_info.update(dp_size=2, batch_num_tokens=0, global_batch_size=6)
    loss, metrics = adapter.dapo_policy_loss(old, new, advantages, mask * 0, aggregation, informed)
    [gradient] = torch.autograd.grad(loss, new)
    assert loss.item() == 0 and torch.equal(gradient, torch.zeros_like(gradient))
    known = adapter.dapo_policy_loss(old, new, advantages, mask, aggregation, informed)[1]
    assert metrics == dict.fromkeys(known, 0.0), "the same names as any other mini-batch"


def test_a_part_without_tokens_of_a_mini_batch_that_has_some(adapter: ModuleType, informed: Any) -> None:
    old, new, advantages, mask = batch(9)
    informed.global_batch_info.update(dp_size=1, batch_num_tokens=23.0, global_batch_size=6)
    loss, metrics = adapter.dapo_policy_loss(old, new, advantages, mask * 0, "token-mean", informed)
    assert loss.item() == 0 and all(math.isfinite(value) for value in metrics.values())


class TestOffPolicy:
    """Staleness is reported, and corrected for where the job asks for it."""

    def corrected(self, level: str | None, cap: float | None, mask: torch.Tensor | None = None) -> Any:
        from verl.protocol import DataProto
        from verl.trainer.config.algorithm import RolloutCorrectionConfig
        from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_add_to_batch

        kept = torch.ones(2, 3) if mask is None else mask
        tensors = {"old_log_probs": OLD, "rollout_log_probs": SAMPLED, "response_mask": kept}
        settings = RolloutCorrectionConfig(rollout_is=level, rollout_is_threshold=cap or 2.0)
        data, metrics = compute_rollout_correction_and_add_to_batch(DataProto.from_single_dict(tensors), settings)
        return data.batch.get("rollout_is_weights"), metrics

    def test_without_a_correction_the_difference_is_measured_only(self) -> None:
        weights, metrics = self.corrected(None, None)
        assert weights is None
        assert metrics["rollout_corr/kl"] == pytest.approx((SAMPLED - OLD).mean().item(), abs=1e-5)

    def test_token_weights_are_the_ratio_cut_at_the_cap(self) -> None:
        weights, metrics = self.corrected("token", 2.0)
        torch.testing.assert_close(weights, torch.exp(OLD - SAMPLED).clamp(max=2.0))
        assert metrics["rollout_corr/rollout_is_mean"] > 0

    def test_sequence_weights_are_the_product_of_the_ratios(self) -> None:
        weights, _ = self.corrected("sequence", 5.0)
        products = torch.exp((OLD - SAMPLED).sum(-1, keepdim=True)).clamp(max=5.0)
        torch.testing.assert_close(weights, products.expand(2, 3))

    def test_weights_scale_loss_and_gradient_and_stay_constants(self, adapter: ModuleType, config: Any) -> None:
        weights, _ = self.corrected("token", 2.0)
        new = OLD.clone().requires_grad_()
        advantages, mask = torch.tensor([[1.0], [-0.5]]).expand(2, 3).contiguous(), torch.ones(2, 3)
        loss, _ = adapter.dapo_policy_loss(OLD, new, advantages, mask, "token-mean", config, weights)
        [gradient] = torch.autograd.grad(loss, new)
        torch.testing.assert_close(gradient, -advantages * weights / 6)


OLD = torch.tensor([[-1.0, -0.5, -2.0], [-0.1, -3.0, -1.0]])
SAMPLED = torch.tensor([[-1.1, -0.5, -3.5], [-0.2, -2.0, -1.0]])


def test_b15_clipped_tokens_are_counted_over_the_mini_batch_whatever_its_parts(
    adapter: ModuleType, config: Any
) -> None:
    """Two ranks, one of which has two parts: summed over parts and averaged over ranks, as verl does."""
    from dapo_core.run.metrics import CLIP_FRACTION_HIGH

    advantages = torch.ones(4, 8)
    mask = (torch.arange(8) < torch.tensor([[8], [1], [1], [2]])).float()
    new = torch.zeros(4, 8)
    new[1:] = 1.0  # clipped: all tokens of the short ones
    config.global_batch_info.update(batch_num_tokens=12, dp_size=2)
    try:
        ranks = [
            sum(
                adapter.dapo_policy_loss(
                    torch.zeros_like(new[part]), new[part], advantages[part], mask[part], "token-mean", config
                )[1][CLIP_FRACTION_HIGH]
                for part in parts
            )
            for parts in ([slice(0, 1), slice(1, 2)], [slice(2, 4)])
        ]
    finally:
        config.global_batch_info.clear()
    assert sum(ranks) / len(ranks) == pytest.approx(4 / 12)


def test_b15_terms_for_entropy_and_kl_of_a_masked_mini_batch_are_zero(adapter: ModuleType, config: Any) -> None:
    from verl.trainer.ppo.core_algos import agg_loss

    nothing = torch.zeros(2, 3)
    config.global_batch_info.update(batch_num_tokens=0, dp_size=1)
    try:
        adapter.dapo_policy_loss(nothing, nothing, nothing, nothing, "token-mean", config)
        entropy = agg_loss(torch.ones(2, 3), nothing, "token-mean", **config.global_batch_info)
    finally:
        config.global_batch_info.clear()
    assert entropy.item() == 0
