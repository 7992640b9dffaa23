"""Log-probabilities and entropy of a response's tokens in float32, without the logits of the whole response.

verl's own path rounds logits to bfloat16, whose steps at 20 are 0.125: log-probs are off by 0.01 on average, so that
ratios near 1 are noise. Here a product of bfloat16 factors is added up and kept in float32, for a chunk of tokens at a
time, once more in the backward pass. verl's models call it in place of `FusedLinearForPPO`.
"""

from typing import Any, Final

import torch
from torch.distributed.tensor import DTensor, Partial
from torch.nn.functional import cross_entropy

from dapo_trainer.verl_adapter import cpu_linear
from dapo_trainer.verl_config.kernels import LOG_PROB_CHUNK

# Entries of the vocabulary whose part of the head's gradient is held a second time while it is added.
HEAD_CHUNK: Final = 16_384


def token_log_probs(
    hidden: torch.Tensor,
    head: torch.Tensor,
    tokens: torch.Tensor,
    temperature: float = 1.0,
    chunk: int = LOG_PROB_CHUNK,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probs of `tokens` and entropies, both float32 in the shape of `tokens`, in nats.

    `hidden`: [..., width]; `head`: [vocabulary, width]; `tokens`: int64 [...].
    """
    flat = hidden.reshape(-1, hidden.shape[-1]).to(head.dtype)
    log_probs, entropies = _TokenLogProbs.apply(flat, head, tokens.reshape(-1), float(temperature), chunk)
    # Copies: FSDP's hooks on what a model returns do not outlive a view.
    return log_probs.view(tokens.shape).clone(), entropies.view(tokens.shape).clone()


class TokenLogProbs(torch.nn.Module):
    """In the form in which verl calls it, whatever the backend that is named."""

    def __init__(self, chunk_size: int = LOG_PROB_CHUNK, impl_backend: str = "torch") -> None:
        super().__init__()
        self._chunk = chunk_size

    def forward(
        self,
        hidden_states: torch.Tensor,
        vocab_weights: torch.Tensor,
        input_ids: torch.Tensor,
        temperature: float = 1.0,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        head = _whole(vocab_weights).to(hidden_states.dtype) if isinstance(vocab_weights, DTensor) else vocab_weights
        return token_log_probs(hidden_states, head, input_ids.long(), temperature, self._chunk)


def _whole(sharded: DTensor) -> torch.Tensor:
    """The head that FSDP gathers only when it is called: verl wraps it on its own unless embeddings are tied.

    Its gradient is the mean over the ranks, as FSDP's.
    """
    mesh = sharded.device_mesh
    whole: torch.Tensor = sharded.full_tensor(grad_placements=[Partial()] * mesh.ndim)
    if whole.requires_grad:
        whole.register_hook(lambda gradient: gradient / mesh.size())
    return whole


class _TokenLogProbs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: torch.Tensor, head: torch.Tensor, tokens: torch.Tensor, temperature: float, chunk: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        ctx.set_materialize_grads(False)
        log_probs = torch.empty(tokens.shape, dtype=torch.float32, device=hidden.device)
        entropies = torch.empty_like(log_probs)
        with torch.autocast(hidden.device.type, enabled=False):
            for begin in range(0, len(tokens), chunk):
                part = slice(begin, begin + chunk)
                logs = _log_softmax(hidden[part], head, temperature)
                log_probs[part] = logs.gather(1, tokens[part, None]).squeeze(1)
                entropies[part] = -torch.linalg.vecdot(logs.exp(), logs)
        ctx.save_for_backward(hidden, head, tokens, entropies)
        ctx.temperature, ctx.chunk = temperature, chunk
        return log_probs, entropies

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        hidden, head, tokens, entropies = ctx.saved_tensors
        needs_hidden, needs_head = ctx.needs_input_grad[:2]
        of_hidden = torch.empty_like(hidden) if needs_hidden else None
        # Summed up over the chunks in float32: in bfloat16, small additions to a large sum would be lost.
        of_head = torch.zeros(head.shape, dtype=torch.float32, device=head.device) if needs_head else None
        with torch.autocast(hidden.device.type, enabled=False):
            for begin in range(0, len(tokens), ctx.chunk):
                part = slice(begin, begin + ctx.chunk)
                logs = _log_softmax(hidden[part], head, ctx.temperature)
                wanted = (each if each is None else each[part] for each in gradients)
                of_logits = _of_logits(logs, tokens[part], entropies[part], *wanted)
                of_logits = of_logits.div_(ctx.temperature).to(hidden.dtype)
                if of_hidden is not None:
                    of_hidden[part] = of_logits @ head
                if of_head is not None:
                    for entries in range(0, len(head), HEAD_CHUNK):
                        some = slice(entries, entries + HEAD_CHUNK)
                        of_head[some] += product(of_logits[:, some].t(), hidden[part])
        return of_hidden, None if of_head is None else of_head.to(head.dtype), None, None, None


def _of_logits(
    logs: torch.Tensor,
    tokens: torch.Tensor,
    entropies: torch.Tensor,
    of_log_probs: torch.Tensor | None,
    of_entropies: torch.Tensor | None,
) -> torch.Tensor:
    """Gradient of the logits [tokens, vocabulary]; `logs`, their log-softmax, is written over."""
    if of_entropies is None:
        out = logs.exp_()
    else:
        probabilities = logs.exp()
        out = logs.add_(entropies[:, None]).mul_(of_entropies[:, None]).mul_(probabilities).neg_()
    if of_log_probs is None:
        return out
    if of_entropies is None:
        out.mul_(-of_log_probs[:, None])
    else:
        out.addcmul_(probabilities, of_log_probs[:, None], value=-1)
    return out.scatter_add_(1, tokens[:, None], of_log_probs[:, None])


def _log_softmax(hidden: torch.Tensor, head: torch.Tensor, temperature: float) -> torch.Tensor:
    logits = product(hidden, head.t())
    if temperature != 1.0:
        logits /= temperature
    logits -= logits.logsumexp(dim=-1, keepdim=True)
    return logits


def product(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """[a, b] x [b, c] in float32: of 16-bit factors on CUDA by tensor cores, which add up in float32 anyway."""
    if left.is_cuda and left.dtype != torch.float32:
        return torch.mm(left, right, out_dtype=torch.float32)
    if left.device.type == "cpu" and cpu_linear.AVAILABLE:
        return cpu_linear.product(left.float(), right.float().t())
    return left.float() @ right.float()


def install() -> None:
    """Let verl's models compute log-probs by `TokenLogProbs`, in this process."""
    import verl.utils.experimental.torch_functional as functional

    functional.FusedLinearForPPO = TokenLogProbs


def logit_log_probs(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Log-probs of `labels`, float32 in their shape, in nats. `logits`: [..., vocabulary]; `labels`: int64 [...]."""
    flat = logits.reshape(-1, logits.shape[-1]).float()
    return -cross_entropy(flat, labels.reshape(-1), reduction="none").view(labels.shape)


def install_for_logits() -> None:
    """Let verl's engines compute log-probs by `logit_log_probs` where they have no fused kernel, in this process.

    verl computes them without CUDA's cross-entropy in a Python loop over all tokens, and of bfloat16 logits in
    bfloat16.
    """
    from verl.utils import torch_functional

    torch_functional.logprobs_from_logits_v2 = logit_log_probs
