"""Log-probs from logits against verl's own and against float64: values and gradients."""

from types import ModuleType

import engines
import pytest
import torch


@pytest.fixture(scope="module")
def module() -> ModuleType:
    return engines.load("dapo_trainer.verl_adapter.token_log_probs")


def drawn(*shape: int, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    chance = torch.Generator().manual_seed(0)
    logits = (20 * torch.randn(*shape, generator=chance)).to(dtype).requires_grad_()
    return logits, torch.randint(0, shape[-1], shape[:-1], generator=chance)


@pytest.mark.parametrize(
    "dtype", [pytest.param(torch.float32, id="float32"), pytest.param(torch.bfloat16, id="bfloat16")]
)
@pytest.mark.parametrize(
    "shape",
    [
        pytest.param((300, 259), id="packed"),
        pytest.param((3, 5, 17), id="rows"),
        pytest.param((1, 1, 2), id="one token"),
    ],
)
def test_values_and_gradients(module: ModuleType, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    logits, labels = drawn(*shape, dtype=dtype)
    ours = module.logit_log_probs(logits, labels)
    assert ours.dtype == torch.float32
    exact = logits.double().log_softmax(-1).gather(-1, labels[..., None]).squeeze(-1)
    torch.testing.assert_close(ours.double(), exact, atol=2e-5, rtol=1e-6)
    weight = torch.randn(labels.shape)
    mine, theirs = (torch.autograd.grad((out * weight).sum(), logits)[0] for out in (ours, exact))
    torch.testing.assert_close(mine, theirs)


def test_verl_computes_by_it(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Called as the engine calls it; in float32 the values are verl's."""
    functional = engines.load("verl.utils.torch_functional")
    monkeypatch.setattr(functional, "FLAH_ATTN_CROSS_ENTROPY_LOSS_AVAILABLE", False)
    monkeypatch.setattr(functional, "logprobs_from_logits_v2", functional.logprobs_from_logits_v2)
    logits, labels = drawn(40, 259)
    verls = functional.logprobs_from_logits_naive(logits, labels)
    module.install_for_logits()
    after = functional.logprobs_from_logits(logits=logits, labels=labels, inplace_backward=True)
    assert functional.logprobs_from_logits_v2 is module.logit_log_probs
    torch.testing.assert_close(after, verls, atol=2e-5, rtol=1e-6)


def test_each_rank_installs_it() -> None:
    functional = engines.load("verl.utils.torch_functional")
    engines.load("dapo_trainer.verl_adapter.rank_extensions")
    assert functional.logprobs_from_logits_v2.__module__ == "dapo_trainer.verl_adapter.token_log_probs"
