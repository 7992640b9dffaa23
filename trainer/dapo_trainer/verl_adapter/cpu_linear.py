"""Linear layers in float32 on CPUs, forward and backward, by oneDNN.

torch multiplies float32 matrices by MKL, which does not use AVX-512 on processors of other makers than its own: on an
AMD EPYC it takes 2.3 times as long as oneDNN, which is part of torch, too, and which vLLM's engines use. Both add up
in float32.
"""

from typing import Any, Final

import torch
from torch.nn import functional

_torch_linear: Final = functional.linear
_PLAIN: Final = (torch.Tensor, torch.nn.Parameter)
# Builds of torch for other processors may lack it.
AVAILABLE: Final = torch.backends.mkldnn.is_available()


def product(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """[a, b] x [c, b], both float32 on a CPU: `left` times the transpose of `right`, [a, c]."""
    out: torch.Tensor = torch.ops.mkldnn._linear_pointwise(left, right, None, "none", [], "")
    return out


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """`rows`: [..., in]; `weight`: [out, in]; `bias`: [out]; returns [..., out]."""
        ctx.save_for_backward(rows, weight)
        flat = torch.ops.mkldnn._linear_pointwise(rows.flatten(0, -2), weight, bias, "none", [], "")
        # As torch's: an operation in place on a view, such as verl's on logits, would drop FSDP's hooks on it.
        out: torch.Tensor = torch.ops.aten._unsafe_view(flat, (*rows.shape[:-1], len(weight)))
        return out

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        rows, weight = ctx.saved_tensors
        flat = gradient.flatten(0, -2)
        needs_rows, needs_weight, needs_bias = ctx.needs_input_grad
        of_rows = product(flat, weight.t()).view(rows.shape) if needs_rows else None
        of_weight = _of_weight(flat, rows.flatten(0, -2)) if needs_weight else None
        return of_rows, of_weight, flat.sum(0) if needs_bias else None


def _of_weight(gradient: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """[out, in] of [tokens, out] and [tokens, in]. The first factor is copied, so it is the narrower of the two."""
    if gradient.shape[1] < rows.shape[1]:
        return product(gradient.t(), rows.t())
    return product(rows.t(), gradient.t()).t()


def linear(input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """In place of `torch.nn.functional.linear`, which still computes everything but plain float32 on a CPU."""
    if not _is_plain(input, weight, bias) or torch.is_autocast_enabled("cpu"):
        return _torch_linear(input, weight, bias)
    out: torch.Tensor = _Linear.apply(input, weight, bias)
    return out


def _is_plain(rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> bool:
    """Whether oneDNN's kernel takes them: matrices that are tensors of torch itself, and not empty."""
    given = (rows, weight) if bias is None else (rows, weight, bias)
    return (
        all(type(each) in _PLAIN and each.dtype == torch.float32 and each.device.type == "cpu" for each in given)
        and rows.dim() >= 2
        and weight.dim() == 2
        and rows.numel() > 0
    )


def install() -> None:
    """Let the models of this process compute their linear layers here."""
    if AVAILABLE:
        functional.linear = linear
