"""TransferQueue's storage, whose messages have short rows packed (packed_rows); everything else is its own.

Both sides have to be ours: the units that hold the rows, and each process that puts or gets them. `install` is for
either, before it uses the queue.
"""

from typing import Any

import ray
from transfer_queue.storage import AsyncSimpleStorageManager, StorageManagerFactory
from transfer_queue.storage.bootstrap import simple_storage_bootstrap
from transfer_queue.storage.simple_storage import SimpleStorageUnit

from dapo_trainer.verl_adapter.packed_rows import owned, packed, unpacked


class PackingManager(AsyncSimpleStorageManager):
    """In a process that uses the queue."""

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
    simple_storage_bootstrap.SimpleStorageUnit = ray.remote(num_cpus=1)(PackingUnit)
