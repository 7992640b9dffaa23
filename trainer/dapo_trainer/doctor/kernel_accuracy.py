"""Attention and log-probabilities on the device, compared with float64 on the processor: `python -m` prints checks.

A process of its own: a broken driver ends a process, and CUDA's context would stay in one that lives on.
"""

import json
import math
import sys
from collections.abc import Iterator
from typing import Final

import torch
from torch.nn import functional

from dapo_trainer.doctor.check import Check, failed, ok

# The largest error relative to the largest value that each format's rounding explains, with room for another order of
# summation.
TOLERANCE: Final = {torch.float32: 1e-4, torch.bfloat16: 2e-2}
SEED: Final = 7


def checks(device: str) -> Iterator[Check]:
    """Forward and backward of attention, and log-probabilities of sampled tokens."""
    yield _versions(device)
    for dtype in TOLERANCE:
        yield _compared(f"attention in {_name(dtype)}", attention_error(device, dtype), TOLERANCE[dtype])
    yield _compared("log-probabilities", log_prob_error(device), 1e-4)


def attention_error(device: str, dtype: torch.dtype) -> float:
    """Largest difference of a causal attention and its gradient, relative to the largest value."""
    generator = torch.Generator().manual_seed(SEED)
    exact = torch.randn(3, 2, 4, 130, 64, generator=generator, dtype=torch.float64)
    rounded = exact.to(dtype)
    worst = 0.0
    for here, there in zip(_attended(rounded.to(device)), _attended(rounded.double()), strict=True):
        worst = max(worst, ((here.double().cpu() - there).abs().max() / there.abs().max()).item())
    return worst


def _attended(inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    inputs = inputs.detach().requires_grad_()
    if inputs.dtype == torch.float64:
        scores = inputs[0] @ inputs[1].transpose(-1, -2) / math.sqrt(inputs.shape[-1])
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        output = scores.masked_fill(~mask, -math.inf).softmax(-1) @ inputs[2]
    elif inputs.device.type == "cuda" and inputs.dtype == torch.bfloat16:
        output = _packed(inputs)
    else:
        output = functional.scaled_dot_product_attention(inputs[0], inputs[1], inputs[2], is_causal=True)
    output.square().sum().backward()
    assert inputs.grad is not None
    return output.detach(), inputs.grad


def _packed(inputs: torch.Tensor) -> torch.Tensor:
    """By the kernel with which jobs train: all rows of [3, rows, heads, tokens, width] as one, with their bounds."""
    from torch.nn.attention.varlen import varlen_attn

    rows, tokens = inputs.shape[1], inputs.shape[3]
    query, key, value = inputs.transpose(2, 3).flatten(1, 2)
    bounds = torch.arange(rows + 1, device=inputs.device, dtype=torch.int32) * tokens
    output = varlen_attn(query, key, value, bounds, bounds, tokens, tokens, window_size=(-1, 0))
    assert isinstance(output, torch.Tensor)
    return output.unflatten(0, (rows, tokens)).transpose(1, 2)


def log_prob_error(device: str) -> float:
    """Largest absolute difference of the log-probability of a token in a vocabulary of Qwen2.5's size."""
    from dapo_trainer.verl_adapter.token_log_probs import token_log_probs

    generator = torch.Generator().manual_seed(SEED)
    hidden = torch.randn(16, 128, generator=generator).bfloat16()
    head = (torch.randn(151_936, 128, generator=generator) / 8).bfloat16()
    tokens = torch.randint(len(head), (16,), generator=generator)
    here, _ = token_log_probs(hidden.to(device), head.to(device), tokens.to(device))
    exact = (hidden.double() @ head.double().t()).log_softmax(-1).gather(-1, tokens[:, None])[:, 0]
    return float((here.double().cpu() - exact).abs().max())


def _compared(name: str, error: float, tolerance: float) -> Check:
    found = f"differs from float64 by {error:.1e}, at most {tolerance:.0e} expected"
    if math.isfinite(error) and error <= tolerance:
        return ok(name, found)
    return failed(name, found, "cordon the node and test its GPU: it computes wrong results")


def _versions(device: str) -> Check:
    cuda = torch.version.cuda if device == "cuda" else None
    return ok("torch", torch.__version__ + (f", CUDA {cuda}, {torch.cuda.get_device_name()}" if cuda else ""))


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def main() -> None:
    for check in checks(sys.argv[1]):
        print(json.dumps(check.as_json()), flush=True)


if __name__ == "__main__":
    main()
