"""Rows of different length, chosen, cut and padded for all rows at once; the results are those of verl's functions.

verl goes through the rows in Python, with tensors for bounds: several times for each mini-batch of an update, and on
the head for each field of a batch.
"""

from collections.abc import Sequence
from typing import Any

import torch
from tensordict import TensorDict
from verl.utils import tensordict_utils
from verl.workers.utils import losses, padding

_padded_of_dense = padding.no_padding_2_padding


def select(batch: TensorDict | None, indices: torch.Tensor | Sequence[int]) -> TensorDict | None:
    """The rows of `batch` with these numbers, in their order; values without rows stay as they are."""
    if batch is None:
        return None
    rows = torch.as_tensor(indices)
    chosen = {name: _selected(values, rows) for name, values in batch.items()}
    return TensorDict(source=chosen, batch_size=len(rows))


def padded_responses(tensor: torch.Tensor, data: Any) -> torch.Tensor:
    """Of values per token of prompts and responses, packed or nested, those that predict the responses.

    [responses, longest response, ...], zero after the end. `data` has `prompts` and `responses`, nested, and may have
    the longest response's length as `max_response_len`.
    """
    if not data["prompts"].is_nested:
        return _padded_of_dense(tensor, data)
    values = tensor.values() if tensor.is_nested else tensor
    before, lengths = (data[name].offsets().diff() for name in ("prompts", "responses"))
    ends = (before + lengths).cumsum(0)
    assert int(ends[-1]) == len(values) and int(before.min()) > 0
    longest = tensordict_utils.get_non_tensor_data(data=data, key="max_response_len", default=-1)
    longest = longest if longest >= 0 else int(lengths.max())
    slots = _ranges(torch.arange(len(lengths), device=lengths.device) * longest, lengths)
    grid = values.new_zeros(len(lengths) * longest, *values.shape[1:])
    grid = grid.index_copy(0, slots, values.index_select(0, _ranges(ends - lengths - 1, lengths)))
    return grid.unflatten(0, (len(lengths), longest))


def response_part(tensor: torch.Tensor, response_mask: torch.Tensor) -> torch.Tensor:
    """The same, nested: [responses, length]; `tensor` is nested, [responses, length of prompt and response]."""
    bounds = response_mask.offsets()
    lengths = bounds.diff()
    values = tensor.values().index_select(0, _ranges(tensor.offsets()[1:] - lengths - 1, lengths))
    return _nested(values, bounds)


def without_padding(tensor: torch.Tensor, response_mask: torch.Tensor) -> torch.Tensor:
    """[responses, longest, ...] without what is after the end of each; nested as `response_mask` is."""
    bounds = response_mask.offsets()
    begins = torch.arange(len(tensor), device=bounds.device) * tensor.shape[1]
    return _nested(tensor.flatten(0, 1).index_select(0, _ranges(begins, bounds.diff())), bounds)


def _selected(values: Any, rows: torch.Tensor) -> Any:
    if not isinstance(values, torch.Tensor):
        return values[rows] if values.shape else values
    if not values.is_nested:
        return values[rows]
    if values.layout is not torch.jagged or values.dim() != 2 or values.lengths() is not None:
        of_row = values.unbind()
        ragged = getattr(values, "_ragged_idx", values.dim() - 1)
        chosen = [of_row[row] for row in rows.tolist()]
        return tensordict_utils.nested_tensor_from_tensor_list(chosen, ragged_idx=ragged)
    bounds, rows = values.offsets(), rows.to(values.device)
    lengths = bounds.diff()[rows]
    chosen = values.values().index_select(0, _ranges(bounds[rows], lengths))
    return _nested(chosen, torch.nn.functional.pad(lengths.cumsum(0), (1, 0)))


def _nested(values: torch.Tensor, bounds: torch.Tensor) -> torch.Tensor:
    """Rows of `values`, each from one of `bounds` to the next. Without their lengths torch pads to the sum of all."""
    lengths = bounds.diff()
    return torch.nested.nested_tensor_from_jagged(
        values, bounds, min_seqlen=int(lengths.min()), max_seqlen=int(lengths.max())
    )


def _ranges(begins: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """The numbers from each of `begins` on, as many as its length, one after the other."""
    before = lengths.cumsum(0) - lengths
    shift = torch.repeat_interleave(begins - before, lengths)
    return shift + torch.arange(len(shift), device=shift.device)


def install_in_rank() -> None:
    """Let verl's engines and losses use these in this process."""
    tensordict_utils.index_select_tensor_dict = select
    padding.no_padding_2_padding = losses.no_padding_2_padding = padded_responses


def install_in_driver() -> None:
    """Let verl's trainer use these in this process."""
    from verl.trainer.ppo.v1 import trainer_base

    trainer_base.response_from_nested, trainer_base.response_to_nested = response_part, without_padding
