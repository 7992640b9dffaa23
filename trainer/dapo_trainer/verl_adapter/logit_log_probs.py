"""Log-probs of tokens from their logits in one call, in float32.

verl computes them without CUDA's cross-entropy in a Python loop over all tokens, and of bfloat16 logits in bfloat16.
"""

import torch
from torch.nn.functional import cross_entropy


def log_probs(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Log-probs of `labels`, float32 in their shape, in nats. `logits`: [..., vocabulary]; `labels`: int64 [...]."""
    flat = logits.reshape(-1, logits.shape[-1]).float()
    return -cross_entropy(flat, labels.reshape(-1), reduction="none").view(labels.shape)


def install() -> None:
    """Let verl's engines compute log-probs by this module, in this process, where they have no fused kernel."""
    from verl.utils import torch_functional

    torch_functional.logprobs_from_logits_v2 = log_probs
