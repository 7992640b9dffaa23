"""Rows of different length, chosen and padded at once: verl's own functions give the same values and gradients."""

from types import ModuleType
from typing import Any

import engines
import pytest
import torch

PROMPTS, RESPONSES = (3, 1, 4, 2, 2), (5, 1, 2, 9, 3)


@pytest.fixture(scope="module")
def module() -> ModuleType:
    return engines.load("dapo_trainer.verl_adapter.ragged_rows")


@pytest.fixture(scope="module")
def verl(module: ModuleType) -> Any:
    """verl's functions, read from its source: another test file may have replaced them in this process."""
    from importlib.util import module_from_spec, spec_from_file_location

    from verl.utils import tensordict_utils
    from verl.workers.utils import padding

    def fresh(of: ModuleType) -> ModuleType:
        assert of.__file__ is not None
        spec = spec_from_file_location(f"{of.__name__}_as_it_is", of.__file__)
        assert spec is not None and spec.loader is not None
        made = module_from_spec(spec)
        spec.loader.exec_module(made)
        return made

    return fresh(tensordict_utils), fresh(padding)


def nested(lengths: tuple[int, ...], *, seed: int = 0, shape: tuple[int, ...] = ()) -> torch.Tensor:
    chance = torch.Generator().manual_seed(seed)
    rows = [torch.randn(length, *shape, generator=chance) for length in lengths]
    return torch.nested.as_nested_tensor(rows, layout=torch.jagged)


def rows_of(tensor: torch.Tensor) -> list[Any]:
    return [row.tolist() for row in tensor.unbind()]


def whole() -> tuple[int, ...]:
    return tuple(before + after for before, after in zip(PROMPTS, RESPONSES, strict=True))


@pytest.mark.parametrize(
    "rows",
    [
        pytest.param([4, 0, 2], id="a list"),
        pytest.param(torch.tensor([1, 3]), id="a tensor"),
        pytest.param([2], id="one"),
        pytest.param([0, 1, 2, 3, 4], id="all"),
        pytest.param([1, 1, 0], id="one twice"),
    ],
)
def test_rows_are_chosen(module: ModuleType, verl: Any, rows: Any) -> None:
    from tensordict import TensorDict
    from verl.utils.tensordict_utils import assign_non_tensor, get_tensordict

    batch = get_tensordict({
        "nested": nested(PROMPTS), "wide": nested(PROMPTS, shape=(2,)), "dense": torch.arange(10).view(5, 2),
        "uid": ["a", "b", "c", "d", "e"],
    })  # fmt: skip
    assign_non_tensor(batch, temperature=0.5)
    ours, theirs = module.select(batch, rows), verl[0].index_select_tensor_dict(batch, rows)
    assert set(ours.keys()) == set(theirs.keys()) and ours.batch_size == theirs.batch_size
    for name in ("nested", "wide"):
        assert rows_of(ours[name]) == rows_of(theirs[name])
    assert ours["dense"].tolist() == theirs["dense"].tolist()
    assert ours["uid"] == theirs["uid"] and ours["temperature"] == theirs["temperature"]
    padded, as_theirs = (one.select("nested").to_padded_tensor()["nested"] for one in (ours, theirs))
    torch.testing.assert_close(padded, as_theirs, rtol=0, atol=0)
    assert isinstance(ours, TensorDict) and module.select(None, rows) is None


@pytest.mark.parametrize("packed", [pytest.param(True, id="packed"), pytest.param(False, id="nested")])
@pytest.mark.parametrize("shape", [pytest.param((), id="values"), pytest.param((3,), id="vectors")])
@pytest.mark.parametrize("longest", [pytest.param(None, id="own length"), pytest.param(12, id="given length")])
def test_responses_are_padded(
    module: ModuleType, verl: Any, packed: bool, shape: tuple[int, ...], longest: int | None
) -> None:
    from verl.utils.tensordict_utils import assign_non_tensor, get_tensordict

    data = get_tensordict({"prompts": nested(PROMPTS), "responses": nested(RESPONSES)})
    if longest is not None:
        assign_non_tensor(data, max_response_len=longest)
    found = []
    for function in (module.padded_responses, verl[1].no_padding_2_padding):
        values = nested(whole(), seed=1, shape=shape).values().clone().requires_grad_()
        bounds = nested(whole()).offsets()
        given = values if packed else torch.nested.nested_tensor_from_jagged(values, bounds)
        out = function(given, data)
        weight = torch.arange(out.numel(), dtype=out.dtype).view_as(out)
        found.append((out, torch.autograd.grad((out * weight).sum(), values)[0]))
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=0)


def test_responses_are_cut(module: ModuleType, verl: Any) -> None:
    mask, per_token = nested(RESPONSES), nested(whole(), seed=2)
    ours, theirs = module.response_part(per_token, mask), verl[1].response_from_nested(per_token, mask)
    assert rows_of(ours) == rows_of(theirs)


@pytest.mark.parametrize("shape", [pytest.param((), id="values"), pytest.param((3,), id="vectors")])
def test_padding_is_removed(module: ModuleType, verl: Any, shape: tuple[int, ...]) -> None:
    padded, mask = torch.randn(5, 9, *shape), nested(RESPONSES)
    assert rows_of(module.without_padding(padded, mask)) == rows_of(verl[1].response_to_nested(padded, mask))


def test_verl_uses_them(module: ModuleType) -> None:
    """Where it looks them up when it needs them: imported by name elsewhere, verl's own would stay."""
    trainer_base: Any = engines.load("verl.trainer.ppo.v1.trainer_base")
    from verl.utils import seqlen_balancing, tensordict_utils
    from verl.workers.utils import losses

    module.install_in_rank()
    module.install_in_driver()
    assert seqlen_balancing.tu.index_select_tensor_dict is module.select
    assert tensordict_utils.make_iterator.__globals__["index_select_tensor_dict"] is module.select
    assert losses.ppo_loss.__globals__["no_padding_2_padding"] is module.padded_responses
    assert trainer_base.response_to_nested is module.without_padding


def test_a_part_pads_to_its_longest_row(module: ModuleType) -> None:
    """Torch pads a tensor that does not know its lengths to the sum of all rows."""
    mask = nested(RESPONSES)
    for made in (module.response_part(nested(whole()), mask), module.without_padding(torch.randn(5, 9), mask)):
        assert made.to_padded_tensor(0.0).shape == (5, 9)
