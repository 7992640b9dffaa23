"""TransferQueue's storage, whose messages have short rows packed (packed_rows); everything else is its own.

Both sides have to be ours: the units that hold the rows, and each process that puts or gets them. `install` is for
either, before it uses the queue.
"""

from typing import Any

import ray
import torch
from tensordict import TensorDict
from transfer_queue import metadata
from transfer_queue.storage import AsyncSimpleStorageManager, StorageManagerFactory
from transfer_queue.storage.bootstrap import simple_storage_bootstrap
from transfer_queue.storage.managers import simple_storage_manager
from transfer_queue.storage.simple_storage import SimpleStorageUnit

from dapo_trainer.verl_adapter.packed_rows import is_ragged, owned, packed, packed_nested, ragged_lengths, unpacked

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
