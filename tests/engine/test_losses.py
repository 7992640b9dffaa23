"""The losses besides DAPO's own: verl's functions unchanged, our clip fractions, and the guard for masked batches.

Rejection of what trainer and rollout disagree on: our bounds through verl's own mask, against them written out here.
"""

import math
from types import ModuleType
from typing import Any

import engines
import pytest
import torch
from builders import job

from dapo_core.jobspec import DAPOJobSpec
from dapo_trainer.verl_config import Paths, Placement, overrides
from dapo_trainer.verl_config.overrides import LOSS_MODE

CORE = "verl.trainer.ppo.core_algos"
LOSSES = ["dapo", "gspo", "cispo", "sapo", "drgrpo"]
# verl's own function of each, by the name under which it registers it.
VERLS = {"dapo": "vanilla", "drgrpo": "vanilla", "gspo": "gspo", "cispo": "cispo", "sapo": "sapo"}
LIMIT = 20


def spec(algorithm: dict[str, Any]) -> DAPOJobSpec:
    batch = {"prompts": 4, "responsesPerPrompt": 4, "maxResponseTokens": LIMIT}
    return job(algorithm=algorithm, batch=batch).spec


@pytest.fixture(scope="module")
def adapter() -> ModuleType:
    return engines.load("dapo_trainer.verl_adapter.policy_loss")


def actor(algorithm: dict[str, Any]) -> Any:
    """verl's configuration of the actor, from our keys."""
    from verl.workers.config import FSDPActorConfig, PolicyLossConfig

    keys = overrides(spec(algorithm), Placement("cpu"), Paths("/m", ("/t",), (), "/c"))
    names = ["clip_ratio_low", "clip_ratio_high", "clip_ratio_c", "tau_pos", "tau_neg", "loss_agg_mode"]
    names += ["loss_scale_factor", "entropy_coeff", "use_kl_loss", "kl_loss_coef"]
    prefix = "actor_rollout_ref.actor."
    chosen = {name: keys[prefix + name] for name in names if prefix + name in keys}
    mode = PolicyLossConfig(loss_mode=keys[f"{prefix}policy_loss.loss_mode"])
    config = FSDPActorConfig(strategy="fsdp2", rollout_n=1, ppo_micro_batch_size_per_gpu=1, policy_loss=mode, **chosen)
    config.global_batch_info["loss_scale_factor"] = config.loss_scale_factor  # as verl's engine does
    return config


def batch(seed: int, spread: float = 0.6) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Old and new log-probs, advantages and mask of six responses of unlike length, one masked whole."""
    chance = torch.Generator().manual_seed(seed)
    old = -torch.rand(6, 9, generator=chance) * 3
    new = old + torch.randn(6, 9, generator=chance) * spread
    advantages = torch.randn(6, 1, generator=chance).expand(6, 9).contiguous()
    lengths = torch.tensor([9, 1, 4, 0, 7, 2])
    return old, new.requires_grad_(), advantages, (torch.arange(9) < lengths[:, None]).float()


def ours(adapter: ModuleType, loss: str) -> Any:
    from verl.trainer.ppo.core_algos import get_policy_loss_fn

    assert adapter is not None  # it registers them
    return get_policy_loss_fn(LOSS_MODE[loss])


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("seed", [0, 1])
def test_loss_and_gradient_are_verls_own(adapter: ModuleType, loss: str, seed: int) -> None:
    theirs = engines.load(CORE).get_policy_loss_fn(VERLS[loss])
    config, (old, new, advantages, mask) = actor({"loss": loss}), batch(seed)
    for weights in (None, torch.rand(6, 9)):
        mine, metrics = ours(adapter, loss)(old, new, advantages, mask, config.loss_agg_mode, config, weights)
        wanted, upstream = theirs(old, new, advantages, mask, config.loss_agg_mode, config, weights)
        assert torch.equal(mine, wanted)
        assert {name: metrics[name] for name in upstream} == upstream
        assert torch.equal(torch.autograd.grad(mine, new)[0], torch.autograd.grad(wanted, new)[0])


def written_out(loss: str, ratio: torch.Tensor, advantage: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The gradient of a loss in the log-probs, by the paper's formula, before the aggregation; [responses, tokens]."""
    whole = torch.exp((ratio.log() * mask).sum(-1, keepdim=True) / mask.sum(-1, keepdim=True).clamp(min=1))
    if loss == "gspo":
        inside = torch.where(advantage > 0, whole <= 1 + 4e-4, whole >= 1 - 3e-4)
        return -advantage * whole * inside
    if loss == "cispo":
        return -advantage * ratio.clamp(max=1.2)
    if loss == "sapo":
        tau = torch.where(advantage > 0, 1.0, 1.05)
        gate = torch.sigmoid(tau * (ratio - 1))
        return -advantage * ratio * 4 * gate * (1 - gate)
    inside = torch.where(advantage > 0, ratio <= 1.2, (ratio >= 0.8) & (ratio <= 10))
    return -advantage * ratio * inside


@pytest.mark.parametrize("loss", ["gspo", "cispo", "sapo", "drgrpo"])
@pytest.mark.parametrize("spread", [0.002, 0.6], ids=["near", "far"])
def test_the_gradient_is_the_papers(adapter: ModuleType, loss: str, spread: float) -> None:
    config, (old, new, advantages, mask) = actor({"loss": loss}), batch(3, spread)
    value, _ = ours(adapter, loss)(old, new, advantages, mask, config.loss_agg_mode, config)
    [found] = torch.autograd.grad(value, new)
    ratio = torch.exp(new - old).detach()
    tokens = written_out(loss, ratio, advantages, mask) * mask
    lengths, rows = mask.sum(-1, keepdim=True).clamp(min=1), (mask.sum(-1) > 0).sum()
    wanted = {
        "cispo": tokens / mask.sum(),
        "drgrpo": tokens / LIMIT / rows,
    }.get(loss, tokens / lengths / rows)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("loss", "advantage", "ratio", "high", "low"),
    [
        pytest.param("drgrpo", 1.0, 1.21, 1, 0, id="drgrpo, good token above"),
        pytest.param("drgrpo", -1.0, 1.21, 0, 0, id="drgrpo, bad token above"),
        pytest.param("drgrpo", -1.0, 0.79, 0, 1, id="drgrpo, bad token below"),
        pytest.param("gspo", 1.0, 1.0005, 1, 0, id="gspo, good response above"),
        pytest.param("gspo", 1.0, 1.0003, 0, 0, id="gspo, good response inside"),
        pytest.param("gspo", -1.0, 0.9996, 0, 1, id="gspo, bad response below"),
        pytest.param("gspo", -1.0, 0.9998, 0, 0, id="gspo, bad response inside"),
        pytest.param("cispo", 1.0, 1.21, 1, 0, id="cispo, good token above"),
        pytest.param("cispo", -1.0, 1.21, 1, 0, id="cispo, bad token above: its weight is clipped too"),
        pytest.param("cispo", -1.0, 0.01, 0, 0, id="cispo has no lower bound"),
        pytest.param("sapo", 1.0, 5.0, 0, 0, id="sapo clips nothing above"),
        pytest.param("sapo", -1.0, 0.01, 0, 0, id="sapo clips nothing below"),
    ],
)
def test_clip_fractions(adapter: ModuleType, loss: str, advantage: float, ratio: float, high: int, low: int) -> None:
    one = torch.ones(1, 3)
    config, log_ratio = actor({"loss": loss}), one.double() * math.log(ratio)
    _, metrics = ours(adapter, loss)(one * 0, log_ratio, one * advantage, one, config.loss_agg_mode, config)
    assert (metrics[adapter.CLIP_FRACTION_HIGH], metrics[adapter.CLIP_FRACTION_LOW]) == (high, low)


def test_gspo_counts_all_tokens_of_a_clipped_response(adapter: ModuleType) -> None:
    """By the mean of its trained tokens: one of them may be far from it, and a masked one does not count."""
    ratios = torch.tensor([[1.5, 0.9, 9.0], [1.0, 1.0, 1.0]])
    mask = torch.tensor([[1.0, 1.0, 0.0], [1.0, 1.0, 1.0]])
    config = actor({"loss": "gspo"})
    _, metrics = ours(adapter, "gspo")(ratios * 0, ratios.log(), ratios * 0 + 1, mask, config.loss_agg_mode, config)
    assert metrics[adapter.CLIP_FRACTION_HIGH] == pytest.approx(2 / 5)
    assert metrics["actor/pg_clipfrac"] == pytest.approx(2 / 5), "verl counts the same"


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("told", [True, False], ids=["as the engine calls it", "alone"])
def test_a_fully_masked_mini_batch_teaches_nothing(adapter: ModuleType, loss: str, told: bool) -> None:
    config, (old, new, advantages, mask) = actor({"loss": loss}), batch(8)
    if told:
        config.global_batch_info.update(dp_size=2, batch_num_tokens=0, global_batch_size=6)
    value, metrics = ours(adapter, loss)(old, new, advantages, mask * 0, config.loss_agg_mode, config)
    [gradient] = torch.autograd.grad(value, new)
    assert value.item() == 0 and torch.equal(gradient, torch.zeros_like(gradient))
    config = actor({"loss": loss})
    known = ours(adapter, loss)(old, new, advantages, mask, config.loss_agg_mode, config)[1]
    assert metrics == dict.fromkeys(known, 0.0), "the same names as any other mini-batch"


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("masked", [True, False], ids=["fully masked", "one token left"])
def test_a_fully_masked_mini_batch_keeps_the_kl_and_entropy_terms_finite(
    adapter: ModuleType, monkeypatch: pytest.MonkeyPatch, loss: str, masked: bool
) -> None:
    """verl adds both after the loss and divides them by the same number of tokens: 0 made the whole model NaN."""
    losses = engines.load("verl.workers.utils.losses")
    monkeypatch.setattr(losses, "no_padding_2_padding", lambda tensor, _data: tensor)
    config = actor({"loss": loss, "klCoefficient": 0.1, "entropyCoefficient": 0.01})
    old, new, advantages, mask = batch(4)
    mask = mask * 0
    mask[0, 0] = 0 if masked else 1
    names = ("response_mask", "old_log_probs", "advantages", "ref_log_prob")
    fields = dict(zip(names, (mask, old, advantages, old - 0.1), strict=True))
    told = {"dp_size": 1, "batch_num_tokens": mask.sum().item(), "global_batch_size": 6}

    class Part(dict[str, Any]):
        """The rows of a micro-batch, with what verl's engine adds to them."""

        def select(self, *wanted: str, **_: Any) -> "Part":
            return self

        def to_padded_tensor(self) -> "Part":
            return self

    rows = Part(fields | told)
    value, _ = losses.ppo_loss(config, {"log_probs": new, "entropy": -new}, rows)
    [gradient] = torch.autograd.grad(value, new)
    assert math.isfinite(value.item()) and torch.isfinite(gradient).all()
    assert bool(gradient.any()) is not masked


def advantages_of(rewards: list[float], algorithm: dict[str, Any]) -> torch.Tensor:
    import numpy

    keys = overrides(spec(algorithm), Placement("cpu"), Paths("/m", ("/t",), (), "/c"))
    compute = engines.load(CORE).compute_grpo_outcome_advantage
    made: torch.Tensor = compute(
        torch.tensor(rewards)[:, None],
        torch.ones(len(rewards), 1),
        numpy.array(["a"] * len(rewards), dtype=object),
        norm_adv_by_std_in_grpo=keys["algorithm.norm_adv_by_std_in_grpo"],
    )[0]
    return made[:, 0]


def test_drgrpos_advantages_are_not_divided_by_the_deviation() -> None:
    rewards = [1.0, -1.0, -1.0, -1.0]
    mean = torch.tensor(rewards) + 0.5
    torch.testing.assert_close(advantages_of(rewards, {"loss": "drgrpo"}), mean)
    torch.testing.assert_close(advantages_of(rewards, {"normalizeByStd": False}), mean)
    torch.testing.assert_close(advantages_of(rewards, {}), mean, rtol=1e-4, atol=1e-4)  # their deviation is 1
    assert advantages_of([1.0, 0.9, 0.9, 0.9], {})[0] > 10 * advantages_of([1.0, 0.9, 0.9, 0.9], {"loss": "drgrpo"})[0]


RATIOS = torch.tensor([[1.0, 0.4, 2.5], [1.1, 1.2, 1.3], [0.5, 1.9, 1.0], [1.0, 1.0, 4.0]])
"""The trainer's probability over the rollout's; the last token of the second response is masked."""
MASK = torch.tensor([[1, 1, 1], [1, 1, 0], [1, 1, 1], [1, 1, 1]])


def kept(rejection: dict[str, Any]) -> torch.Tensor:
    """verl's mask with our keys; [responses, tokens]."""
    keys = overrides(spec({"rolloutRejection": rejection}), Placement("cpu"), Paths("/m", ("/t",), (), "/c"))
    prefix = "algorithm.rollout_correction."
    compute = engines.load("verl.trainer.ppo.rollout_corr_helper").compute_rollout_rejection_mask
    mask: torch.Tensor = compute(
        RATIOS.log(), MASK, keys[f"{prefix}rollout_rs"], keys[f"{prefix}rollout_rs_threshold"]
    )[0]
    return mask


def responses(*kept_rows: int) -> torch.Tensor:
    return MASK * torch.tensor([[int(row in kept_rows)] for row in range(len(MASK))])


@pytest.mark.parametrize(
    ("rejection", "wanted"),
    [
        pytest.param({}, MASK * ((RATIOS >= 0.5) & (RATIOS <= 2)), id="tokens from 1/2 to 2"),
        pytest.param({"upper": 3.0}, MASK * ((RATIOS >= 1 / 3) & (RATIOS <= 3)), id="the inverse of the upper bound"),
        pytest.param(
            {"lower": 0.45, "upper": 5.0}, MASK * (RATIOS >= 0.45), id="a lower bound of the trainer's, not the inverse"
        ),
        pytest.param({"lower": 0.01, "upper": 1.95}, MASK * (RATIOS <= 1.95), id="an upper bound of the trainer's"),
        pytest.param({"measure": "K3", "upper": 0.3}, MASK * (RATIOS - 1 - RATIOS.log() <= 0.3), id="K3 by token"),
        pytest.param({"measure": "K2", "upper": 0.3}, MASK * (RATIOS.log() ** 2 / 2 <= 0.3), id="K2 by token"),
        # Products: 1.0, 1.32, 0.95, 4.0; geometric means: 1.0, 1.15, 0.98, 1.59.
        pytest.param({"level": "SequenceSum", "upper": 1.3}, responses(0, 2), id="responses by their product"),
        pytest.param({"level": "SequenceMean", "upper": 1.3}, responses(0, 1, 2), id="by their geometric mean"),
        pytest.param(
            {"level": "SequenceMean", "lower": 0.9999, "upper": 1.3}, responses(0, 1), id="by both bounds of it"
        ),
        # Largest of r - 1 - log r: 0.58, 0.02, 0.26, 1.61.
        pytest.param({"level": "SequenceMax", "measure": "K3", "upper": 0.3}, responses(1, 2), id="by the largest K3"),
    ],
)  # fmt: skip
def test_rejection_keeps_what_lies_between_the_bounds(rejection: dict[str, Any], wanted: torch.Tensor) -> None:
    assert kept(rejection).tolist() == wanted.int().tolist()
