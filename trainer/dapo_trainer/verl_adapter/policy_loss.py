"""verl's policy losses, with the two sides of the clip counted separately and a guard for masked mini-batches.

verl's `actor/pg_clipfrac` adds both sides and its `pg_clipfrac_lower` is the dual clip: neither shows whether
clip-higher (paper section 3.1) lets unlikely tokens grow. Loaded in every trainer rank by `rank_extensions`; the
names are those of `verl_config.overrides.LOSS_MODE`.
"""

from collections.abc import Callable
from typing import Any

import torch
from verl.trainer.ppo.core_algos import (
    compute_policy_loss_cispo,
    compute_policy_loss_gspo,
    compute_policy_loss_sapo,
    compute_policy_loss_vanilla,
    register_policy_loss,
)

from dapo_core.run.metrics import CLIP_FRACTION_HIGH, CLIP_FRACTION_LOW
from dapo_trainer.verl_adapter import clip_marks

# The metrics of verl's losses, and ours.
_METRICS = ("actor/pg_clipfrac", "actor/ppo_kl", "actor/pg_clipfrac_lower", CLIP_FRACTION_HIGH, CLIP_FRACTION_LOW)

Loss = Callable[..., tuple[torch.Tensor, dict[str, Any]]]
Clipped = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, Any], tuple[torch.Tensor, torch.Tensor]]
"""(log-ratios, advantages, mask, config) -> the tokens above and below the bounds; all [responses, tokens]."""


def _token_ratio(log_ratio: torch.Tensor) -> torch.Tensor:
    return torch.exp(torch.clamp(log_ratio, -20.0, 20.0))


def _without_gradient(ratio: torch.Tensor, advantages: torch.Tensor, config: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """The minimum of a clipped objective keeps the gradient where the clip would raise the objective."""
    high = (ratio > 1 + config.clip_ratio_high) & (advantages > 0)
    return high, (ratio < 1 - config.clip_ratio_low) & (advantages < 0)


def _by_token(
    log_ratio: torch.Tensor, advantages: torch.Tensor, _mask: torch.Tensor, config: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    return _without_gradient(_token_ratio(log_ratio), advantages, config)


def _by_response(
    log_ratio: torch.Tensor, advantages: torch.Tensor, mask: torch.Tensor, config: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """GSPO: a response is clipped as a whole, by the geometric mean of its ratios."""
    mean = (log_ratio * mask).sum(-1, keepdim=True) / mask.sum(-1, keepdim=True).clamp(min=1)
    return _without_gradient(torch.exp(mean.clamp(max=10.0)).expand_as(log_ratio), advantages, config)


def _weights(
    log_ratio: torch.Tensor, _advantages: torch.Tensor, _mask: torch.Tensor, config: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """CISPO: a token's weight is clipped whatever its advantage, and the token keeps its gradient."""
    ratio = _token_ratio(log_ratio)
    return ratio > 1 + config.clip_ratio_high, ratio < 1 - config.clip_ratio_low


def _none(
    log_ratio: torch.Tensor, _advantages: torch.Tensor, _mask: torch.Tensor, _config: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """SAPO: a gate instead of a clip."""
    nothing = torch.zeros_like(log_ratio, dtype=torch.bool)
    return nothing, nothing


def _counted(verls: Loss, clipped: Clipped) -> Loss:
    """verl's loss, unchanged wherever a token has a loss, with our metrics."""

    def policy_loss(
        old_log_prob: torch.Tensor,
        log_prob: torch.Tensor,
        advantages: torch.Tensor,
        response_mask: torch.Tensor,
        loss_agg_mode: str = "token-mean",
        config: Any = None,
        rollout_is_weights: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, dict[str, Any]]:
        """All tensors [responses, tokens]."""
        if _fully_masked(response_mask, config):
            _divide_by_one(config)
            return (log_prob * 0.0).sum(), dict.fromkeys(_METRICS, 0.0)
        loss, metrics = verls(
            old_log_prob, log_prob, advantages, response_mask, loss_agg_mode, config, rollout_is_weights
        )
        with torch.no_grad():
            high, low = clipped(log_prob - old_log_prob, advantages, response_mask, config)
            metrics[CLIP_FRACTION_HIGH] = _share(high, response_mask, config)
            metrics[CLIP_FRACTION_LOW] = _share(low, response_mask, config)
            mask = response_mask.bool()
            clip_marks.note(high & mask, low & mask)
        return loss, metrics

    return policy_loss


def _share(clipped: torch.Tensor, mask: torch.Tensor, config: Any) -> float:
    """Clipped tokens over all tokens of the mini-batch, times the ranks: `ShardedEngine` sums over the mini-batch's
    parts, and verl takes the mean of the ranks."""
    tokens = config.global_batch_info.get("batch_num_tokens") or mask.sum()
    ranks = config.global_batch_info.get("dp_size") or 1
    return float((clipped & mask.bool()).sum() / tokens * ranks)


def _fully_masked(response_mask: torch.Tensor, config: Any) -> bool:
    """Whether the mini-batch, of which this may be a part, has no token with a loss: the overlong filter or the
    rejection masked all of it, and verl would divide by zero tokens."""
    tokens = config.global_batch_info.get("batch_num_tokens")
    return bool((response_mask.sum() if tokens is None else tokens) == 0)


def _divide_by_one(config: Any) -> None:
    """verl adds the entropy and KL terms after the loss, and divides these by the same number: zero would make them
    NaN, and with them the model. It sets the number again for each part of a mini-batch."""
    if config.global_batch_info.get("batch_num_tokens") == 0:
        config.global_batch_info["batch_num_tokens"] = 1


dapo_policy_loss = register_policy_loss("dapo")(_counted(compute_policy_loss_vanilla, _by_token))
gspo_policy_loss = register_policy_loss("dapo_gspo")(_counted(compute_policy_loss_gspo, _by_response))
cispo_policy_loss = register_policy_loss("dapo_cispo")(_counted(compute_policy_loss_cispo, _weights))
sapo_policy_loss = register_policy_loss("dapo_sapo")(_counted(compute_policy_loss_sapo, _none))
