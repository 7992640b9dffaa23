"""Log-probs and entropies by chunks of tokens, against float64 of the whole, with their gradients."""

from types import ModuleType

import engines
import pytest
import torch

TOKENS, WIDTH, VOCABULARY = 13, 16, 50


@pytest.fixture(scope="module")
def adapter() -> ModuleType:
    return engines.load("dapo_trainer.verl_adapter.token_log_probs")


def drawn(dtype: torch.dtype, scale: float = 1.0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Hidden states [1, tokens, width], output head [vocabulary, width] and tokens [1, tokens]."""
    chance = torch.Generator().manual_seed(0)
    hidden = torch.randn(1, TOKENS, WIDTH, generator=chance) * scale
    head = torch.randn(VOCABULARY, WIDTH, generator=chance)
    tokens = torch.randint(0, VOCABULARY, (1, TOKENS), generator=chance)
    return hidden.to(dtype).requires_grad_(), head.to(dtype).requires_grad_(), tokens


def exact(
    hidden: torch.Tensor, head: torch.Tensor, tokens: torch.Tensor, temperature: float
) -> tuple[torch.Tensor, torch.Tensor]:
    logs = (hidden.double() @ head.double().t() / temperature).log_softmax(-1)
    return logs.gather(-1, tokens[..., None]).squeeze(-1), -(logs.exp() * logs).sum(-1)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("chunk", [pytest.param(5, id="chunks of 5"), pytest.param(1024, id="one chunk")])
@pytest.mark.parametrize("used", [(1.0, 1.0), (1.0, 0.0), (0.0, 1.0)], ids=["both", "log-probs", "entropies"])
def test_values_and_gradients(adapter: ModuleType, chunk: int, temperature: float, used: tuple[float, float]) -> None:
    hidden, head, tokens = drawn(torch.float32)
    ours = adapter.token_log_probs(hidden, head, tokens, temperature, chunk)
    theirs = exact(hidden, head, tokens, temperature)
    for a, b in zip(ours, theirs, strict=True):
        assert a.dtype == torch.float32 and a.shape == tokens.shape
        torch.testing.assert_close(a.double(), b, atol=1e-5, rtol=1e-5)
    weights = torch.randn(2, 1, TOKENS, generator=torch.Generator().manual_seed(1))
    gradients = []
    for values in (ours, theirs):
        loss = sum((w * u * v).sum() for w, u, v in zip(weights, used, values, strict=True) if u)
        gradients.append(torch.autograd.grad(loss, (hidden, head)))
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b.to(a.dtype), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("autocast", [False, True])
def test_g3_factors_in_bfloat16_give_log_probs_in_float32(adapter: ModuleType, autocast: bool) -> None:
    """Logits rounded to bfloat16 are off by up to 0.06 here, and a ratio of 1.001 is lost in that."""
    hidden, head, tokens = drawn(torch.bfloat16, scale=2.0)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        ours, entropies = adapter.token_log_probs(hidden, head, tokens)
    expected, entropy = exact(hidden, head, tokens, 1.0)
    torch.testing.assert_close(ours.double(), expected, atol=2e-5, rtol=1e-5)
    torch.testing.assert_close(entropies.double(), entropy, atol=2e-5, rtol=1e-5)
    rounded = (hidden @ head.t()).float().log_softmax(-1).gather(-1, tokens[..., None]).squeeze(-1)
    assert (rounded.double() - expected).abs().max() > 1e-2


def test_the_heads_gradient_is_summed_in_float32(adapter: ModuleType) -> None:
    """Over chunks of one token: a running sum in bfloat16 stops growing after 256 equal parts."""
    hidden = torch.ones(1000, 1, dtype=torch.bfloat16)
    head = torch.zeros(2, 1, dtype=torch.bfloat16, requires_grad=True)
    log_probs, _ = adapter.token_log_probs(hidden, head, torch.zeros(1000, dtype=torch.int64), chunk=1)
    log_probs.sum().backward()
    assert head.grad is not None
    assert head.grad.flatten().tolist() == [500.0, -500.0]


def test_a_head_that_is_not_trained_gets_no_gradient(adapter: ModuleType) -> None:
    hidden, head, tokens = drawn(torch.float32)
    head.requires_grad_(False)
    adapter.token_log_probs(hidden, head, tokens)[0].sum().backward()
    assert head.grad is None and hidden.grad is not None


def test_verls_models_compute_by_it(adapter: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    from verl.utils.experimental import torch_functional

    monkeypatch.setattr(torch_functional, "FusedLinearForPPO", None)
    adapter.install()
    hidden, head, tokens = drawn(torch.float32)
    called = torch_functional.FusedLinearForPPO(impl_backend="torch")(
        hidden_states=hidden, vocab_weights=head, input_ids=tokens, temperature=0.7
    )
    torch.testing.assert_close(called, adapter.token_log_probs(hidden, head, tokens, 0.7))
