"""Linear layers by oneDNN against float64: values and gradients, and what is left to torch."""

from types import ModuleType

import engines
import pytest
import torch
from torch.nn import functional


@pytest.fixture(scope="module")
def module() -> ModuleType:
    return engines.load("dapo_trainer.verl_adapter.cpu_linear")


@pytest.fixture
def installed(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setattr(functional, "linear", functional.linear)
    module.install()
    return module


@pytest.mark.parametrize("bias", [pytest.param(True, id="bias"), pytest.param(False, id="no bias")])
@pytest.mark.parametrize(
    ("rows", "width"),
    [
        pytest.param((1, 300), 24, id="packed"),
        pytest.param((4, 7), 96, id="more out than in"),
        pytest.param((5,), 1, id="one out"),
        pytest.param((1, 1), 24, id="one token"),
    ],
)
def test_values_and_gradients(installed: ModuleType, rows: tuple[int, ...], width: int, bias: bool) -> None:
    torch.manual_seed(0)
    layer = torch.nn.Linear(48, width, bias=bias)
    exact = torch.nn.Linear(48, width, bias=bias, dtype=torch.float64)
    exact.load_state_dict({name: value.double() for name, value in layer.state_dict().items()})
    given = torch.randn(*rows, 48, requires_grad=True)
    wide = given.detach().double().requires_grad_()
    weight = torch.randn(*rows, width)
    out, wanted = layer(given), exact(wide)
    assert type(out.grad_fn).__name__ == "_LinearBackward" and not out._is_view()
    torch.testing.assert_close(out.double(), wanted, atol=2e-6, rtol=1e-5)
    mine = torch.autograd.grad((out * weight).sum(), [given, *layer.parameters()])
    theirs = torch.autograd.grad((wanted * weight).sum(), [wide, *exact.parameters()])
    for one, other in zip(mine, theirs, strict=True):
        assert one.shape == other.shape
        torch.testing.assert_close(one.double(), other, atol=2e-5, rtol=1e-5)


def test_no_gradient_of_what_is_frozen(installed: ModuleType) -> None:
    layer = torch.nn.Linear(8, 4)
    layer.weight.requires_grad_(False)
    given = torch.randn(3, 8)
    layer(given).sum().backward()
    assert layer.weight.grad is None and given.grad is None
    assert layer.bias.grad is not None and layer.bias.grad.tolist() == [3.0] * 4


@pytest.mark.parametrize(
    ("given", "weight"),
    [
        pytest.param(torch.ones(2, 4, dtype=torch.bfloat16), torch.ones(3, 4, dtype=torch.bfloat16), id="bfloat16"),
        pytest.param(torch.ones(2, 4, dtype=torch.float64), torch.ones(3, 4, dtype=torch.float64), id="float64"),
        pytest.param(torch.ones(0, 4), torch.ones(3, 4), id="no rows"),
        pytest.param(torch.ones(4), torch.ones(3, 4), id="a vector"),
        pytest.param(torch.ones(2, 4, device="meta"), torch.ones(3, 4, device="meta"), id="no device"),
    ],
)
def test_the_rest_is_torch_s(installed: ModuleType, given: torch.Tensor, weight: torch.Tensor) -> None:
    weight.requires_grad_()
    out = functional.linear(given, weight)
    assert type(out.grad_fn).__name__ != "_LinearBackward"
    assert out.shape == (*given.shape[:-1], 3) and out.dtype == given.dtype and out.device == given.device
    if given.device.type == "cpu":
        assert (out == 4).all()


def test_autocast_is_torch_s(installed: ModuleType) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        assert functional.linear(torch.ones(2, 4), torch.ones(3, 4)).dtype == torch.bfloat16


def test_each_rank_installs_it() -> None:
    engines.load("dapo_trainer.verl_adapter.rank_extensions")
    assert functional.linear.__module__ == "dapo_trainer.verl_adapter.cpu_linear"
