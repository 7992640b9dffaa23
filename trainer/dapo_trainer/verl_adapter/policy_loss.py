"""verl's clipped policy loss, with the two sides of the clip counted separately.

verl's `actor/pg_clipfrac` adds both sides and its `pg_clipfrac_lower` is the dual clip: neither shows whether
clip-higher (paper section 3.1) lets unlikely tokens grow. Loaded in every trainer rank by `rank_extensions`.
"""

from typing import Any

import torch
from verl.trainer.ppo.core_algos import compute_policy_loss_vanilla, register_policy_loss

from dapo_core.run.metrics import CLIP_FRACTION_HIGH, CLIP_FRACTION_LOW

# The metrics of verl's loss, and ours.
_METRICS = ("actor/pg_clipfrac", "actor/ppo_kl", "actor/pg_clipfrac_lower", CLIP_FRACTION_HIGH, CLIP_FRACTION_LOW)


@register_policy_loss("dapo")
def dapo_policy_loss(
    old_log_prob: torch.Tensor,
    log_prob: torch.Tensor,
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
    loss_agg_mode: str = "token-mean",
    config: Any = None,
    rollout_is_weights: torch.Tensor | None = None,
) -> tuple[torch.Tensor, dict[str, Any]]:
    """All tensors [responses, tokens]; the loss is verl's, unchanged wherever a token has a loss."""
    if _fully_masked(response_mask, config):
        # The overlong filter masked a whole mini-batch: verl would divide by zero tokens, here and in the terms for
        # entropy and KL that it adds.
        config.global_batch_info["batch_num_tokens"] = 1
        return (log_prob * 0.0).sum(), dict.fromkeys(_METRICS, 0.0)
    loss, metrics = compute_policy_loss_vanilla(
        old_log_prob, log_prob, advantages, response_mask, loss_agg_mode, config, rollout_is_weights
    )
    with torch.no_grad():
        ratio = torch.exp(torch.clamp(log_prob - old_log_prob, -20.0, 20.0))
        high = (ratio > 1 + config.clip_ratio_high) & (advantages > 0)
        low = (ratio < 1 - config.clip_ratio_low) & (advantages < 0)
        metrics[CLIP_FRACTION_HIGH] = _share(high, response_mask, config)
        metrics[CLIP_FRACTION_LOW] = _share(low, response_mask, config)
    return loss, metrics


def _share(clipped: torch.Tensor, mask: torch.Tensor, config: Any) -> float:
    """Clipped tokens over all tokens of the mini-batch, times the ranks: `ShardedEngine` sums over the mini-batch's
    parts, and verl takes the mean of the ranks."""
    tokens = config.global_batch_info.get("batch_num_tokens") or mask.sum()
    ranks = config.global_batch_info.get("dp_size") or 1
    return float((clipped & mask.bool()).sum() / tokens * ranks)


def _fully_masked(response_mask: torch.Tensor, config: Any) -> bool:
    """Whether the mini-batch, of which this may be a part, has no token with a loss."""
    tokens = config.global_batch_info.get("batch_num_tokens")
    return bool((response_mask.sum() if tokens is None else tokens) == 0)
