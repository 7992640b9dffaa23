"""Many short tensors as one: what TransferQueue sends, a field of a batch at a time.

The queue sends each row of each field in a frame of its own. A batch of 256 short responses with 16 fields has 4,096,
made, forwarded and read one by one in Python. Both sides have to be ours: the units that hold the rows, and each
process that puts or gets them. `install` is for either, before it uses the queue; everything else is the queue's own.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import ray
import torch
from tensordict import TensorDict
from transfer_queue import metadata
from transfer_queue.storage import AsyncSimpleStorageManager, StorageManagerFactory
from transfer_queue.storage.bootstrap import simple_storage_bootstrap
from transfer_queue.storage.managers import simple_storage_manager
from transfer_queue.storage.simple_storage import SimpleStorageUnit

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


_schema_row_by_row = metadata.extract_field_schema


def field_schema(data: TensorDict) -> dict[str, dict[str, Any]]:
    """What the queue keeps of each field, its rows' shapes among it; they are asked for twice when a batch is put."""
    ragged = {name: ragged_lengths(values) for name, values in data.items() if is_ragged(values)}
    ragged = {name: lengths for name, lengths in ragged.items() if 0 < len(lengths) == data.batch_size[0]}
    rest = data.exclude(*ragged)
    found = _schema_row_by_row(rest) if len(rest.keys()) else {}
    for name, lengths in ragged.items():
        shapes = [(length,) for length in lengths]
        found[name] = {
            "dtype": data[name].dtype, "shape": torch.Size(shapes[0]), "is_nested": True, "is_non_tensor": False,
            "per_sample_shapes": shapes,
        }  # fmt: skip
    return {name: found[name] for name in data.keys() if name in found}


class PackingManager(AsyncSimpleStorageManager):
    """In a process that uses the queue."""

    @staticmethod
    def _select_by_positions(field_data: Any, positions: list[int]) -> Any:
        chosen = packed_nested(field_data, positions)
        return AsyncSimpleStorageManager._select_by_positions(field_data, positions) if chosen is None else chosen

    async def _put_to_single_storage_unit(
        self, global_indexes: list[int], storage_data: dict[str, Any], *args: Any, **kwargs: Any
    ) -> None:
        await super()._put_to_single_storage_unit(global_indexes, packed(storage_data), *args, **kwargs)

    async def _get_from_single_storage_unit(self, *args: Any, **kwargs: Any) -> tuple[list[str], dict[str, Any]]:
        fields, data = await super()._get_from_single_storage_unit(*args, **kwargs)
        return fields, unpacked(data)


class PackingUnit(SimpleStorageUnit.__ray_metadata__.modified_class.__ray_actor_class__):
    """Holds rows as the queue does, each with memory of its own."""

    def _handle_put(self, data_parts: Any) -> Any:
        fields = data_parts.body["data"]
        data_parts.body["data"] = {name: owned(values) for name, values in fields.items()}
        return super()._handle_put(data_parts)

    def _handle_get(self, data_parts: Any) -> Any:
        response = super()._handle_get(data_parts)
        if "data" in response.body:
            response.body["data"] = packed(response.body["data"])
        return response


def install() -> None:
    """Let this process's queue, or the one that it starts, pack short rows."""
    StorageManagerFactory.register("SimpleStorage")(PackingManager)
    metadata.extract_field_schema = simple_storage_manager.extract_field_schema = field_schema
    simple_storage_bootstrap.SimpleStorageUnit = ray.remote(num_cpus=1)(PackingUnit)
