"""Many short tensors as one: what the data queue sends, a field of a batch at a time.

The queue sends each row of each field in a frame of its own. A batch of 256 short responses with 16 fields has 4,096,
made, forwarded and read one by one in Python.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch

# Mean bytes of a row up to which a field is packed. Of longer rows the copy costs more than the message, and memory.
SHORT: Final = 4096
# What a packed field is on the wire: a mapping with these two.
FLAT, LENGTHS = "rows_in_one", "rows_lengths"


def packed(fields: Mapping[str, Any]) -> dict[str, Any]:
    """`fields` with each list of short tensors [length] of one dtype in one tensor; everything else as it is."""
    return {name: _packed(values) if _short_rows(values) else values for name, values in fields.items()}


def unpacked(fields: Mapping[str, Any]) -> dict[str, Any]:
    """What `packed` was given: rows are views of the one tensor."""
    return {name: _rows(values) if _is_packed(values) else values for name, values in fields.items()}


def packed_nested(values: Any, rows: Sequence[int]) -> dict[str, Any] | None:
    """Some rows of a nested tensor of short rows, [rows, length]; None for all else, which is chosen row by row."""
    if not is_ragged(values) or len(rows) < 2:
        return None
    flat, lengths = values.values(), ragged_lengths(values)
    if flat.device.type != "cpu" or flat.nbytes > SHORT * len(lengths):
        return None
    if list(rows) != list(range(len(lengths))):
        of_row = flat.split(lengths)
        flat, lengths = torch.cat([of_row[row] for row in rows]), [lengths[row] for row in rows]
    return {FLAT: flat, LENGTHS: lengths}


def is_ragged(values: Any) -> bool:
    """Whether it is a nested tensor [rows, length] whose rows are one after the other, without gaps."""
    if not isinstance(values, torch.Tensor) or values.layout is not torch.jagged or values.dim() != 2:
        return False
    bounds = values.offsets()
    return values.lengths() is None and int(bounds[0]) == 0 and int(bounds[-1]) == len(values.values())


def ragged_lengths(values: torch.Tensor) -> list[int]:
    """Of each row of a nested tensor."""
    lengths: list[int] = values.offsets().diff().tolist()
    return lengths


def owned(values: Any) -> Any:
    """Rows with memory of their own: a view would keep all others of its field, in memory and in a checkpoint."""
    return [row.clone() for row in _rows(values)] if _is_packed(values) else values


def _short_rows(values: Any) -> bool:
    if not isinstance(values, list) or len(values) < 2 or not all(map(_is_row, values)):
        return False
    if len({row.dtype for row in values}) > 1:
        return False
    size: int = sum(row.nbytes for row in values)
    return size <= SHORT * len(values)


def _is_row(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dim() == 1 and not value.is_nested and value.device.type == "cpu"


def _packed(rows: Sequence[torch.Tensor]) -> dict[str, Any]:
    return {FLAT: torch.cat(list(rows)), LENGTHS: [len(row) for row in rows]}


def _is_packed(values: Any) -> bool:
    return isinstance(values, Mapping) and values.keys() == {FLAT, LENGTHS}


def _rows(values: Mapping[str, Any]) -> list[torch.Tensor]:
    flat: torch.Tensor = values[FLAT]
    return list(flat.split(values[LENGTHS]))
