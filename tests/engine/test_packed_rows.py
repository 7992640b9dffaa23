"""The data queue's messages with short rows packed: the same rows come back, in far fewer frames."""

import io
import pickle
from typing import Any

import engines
import pytest
import torch


@pytest.fixture(scope="module", autouse=True)
def _engines() -> None:
    engines.load("dapo_trainer.verl_adapter.packed_rows")


def rows(*lengths: int, dtype: Any = torch.int64) -> list[Any]:
    return [torch.arange(length).to(dtype) + place for place, length in enumerate(lengths)]


FIELDS = {
    "of tokens": rows(3, 1, 5),
    "of floats": rows(4, 4, 4, dtype=torch.float32),
    "of bytes": rows(2, 7, dtype=torch.uint8),
    "some empty": rows(0, 3, 0),
    "all empty": rows(0, 0),
}
AS_THEY_ARE = {
    "one row": rows(3),
    "two dtypes": [torch.zeros(2), torch.zeros(2, dtype=torch.int64)],
    "of two dimensions": [torch.zeros(2, 3), torch.zeros(1, 3)],
    "scalars": [torch.tensor(1), torch.tensor(2)],
    "words": ["a", "b"],
    "some missing": [torch.zeros(2), None],
    "a tensor": torch.zeros(4, 2),
    "long rows": [torch.zeros(2000), torch.zeros(2000)],
    "nothing": [],
}


@pytest.mark.parametrize("name", FIELDS)
def test_rows_come_back(name: str) -> None:
    from dapo_trainer.verl_adapter.packed_rows import packed, unpacked

    sent = packed({name: FIELDS[name]})
    assert not isinstance(sent[name], list)
    found = unpacked(sent)[name]
    assert [row.dtype for row in found] == [row.dtype for row in FIELDS[name]]
    assert [row.tolist() for row in found] == [row.tolist() for row in FIELDS[name]]


@pytest.mark.parametrize("name", AS_THEY_ARE)
def test_other_values_are_sent_as_they_are(name: str) -> None:
    from dapo_trainer.verl_adapter.packed_rows import owned, packed, unpacked

    sent = packed({name: AS_THEY_ARE[name]})
    assert sent[name] is AS_THEY_ARE[name]
    assert unpacked(sent)[name] is owned(sent[name]) is AS_THEY_ARE[name]


def nested(*lengths: int, wide: bool = False) -> Any:
    made = [torch.randn(length, *([2] if wide else [])) for length in lengths]
    return torch.nested.as_nested_tensor(made, layout=torch.jagged)


@pytest.mark.parametrize("chosen", [[0, 1, 2, 3], [3, 1], [2, 2, 0]], ids=["all", "some", "one twice"])
def test_rows_of_a_nested_tensor(chosen: list[int]) -> None:
    from transfer_queue.storage import AsyncSimpleStorageManager

    from dapo_trainer.verl_adapter.packed_rows import PackingManager, unpacked

    for values in (nested(3, 0, 5, 1), nested(3, 1, 5, 1, wide=True), nested(3, 2000, 3000, 2)):
        ours = unpacked({"values": PackingManager._select_by_positions(values, chosen)})["values"]
        theirs = AsyncSimpleStorageManager._select_by_positions(values, chosen)
        assert [row.tolist() for row in ours] == [row.tolist() for row in theirs]
    (alone,) = PackingManager._select_by_positions(nested(3, 1), [1])
    assert alone.shape == (1,)


def test_what_the_queue_keeps_of_fields() -> None:
    from tensordict import NonTensorStack, TensorDict

    from dapo_trainer.verl_adapter.packed_rows import _schema_row_by_row, field_schema

    fields = {
        "dense": torch.randn(3, 2), "ragged": nested(4, 1, 2), "words": NonTensorStack("a", "b", "c"),
        "wide": nested(2, 3, 1, wide=True), "of one length": nested(2, 2, 2),
    }  # fmt: skip
    for names in (list(fields), ["ragged"], ["dense", "words"]):
        data = TensorDict({name: fields[name] for name in names}, batch_size=3)
        ours, theirs = field_schema(data), _schema_row_by_row(data)
        assert ours == theirs and list(ours) == list(theirs)


def over_the_wire(body: dict[str, Any]) -> tuple[Any, int]:
    """What arrives of a message with `body`, and in how many frames."""
    from transfer_queue.utils.zmq_utils import ZMQMessage, ZMQRequestType

    message = ZMQMessage.create(
        request_type=ZMQRequestType.PUT_DATA, sender_id="sender", receiver_id="receiver", body=body
    )
    frames = [bytearray(frame) for frame in message.serialize()]
    return ZMQMessage.deserialize(frames), len(frames)


def unit() -> Any:
    """A storage unit without its sockets."""
    from transfer_queue.storage.simple_storage import StorageUnitData

    from dapo_trainer.verl_adapter.packed_rows import PackingUnit

    made = object.__new__(PackingUnit)
    made.storage_unit_id, made.storage_data = "unit", StorageUnitData(None)
    return made


def test_a_batch_through_a_storage_unit() -> None:
    from dapo_trainer.verl_adapter.packed_rows import packed, unpacked

    storage, indexes = unit(), list(range(64))
    tokens, scores, words = rows(*range(1, 65)), rows(*[3] * 64, dtype=torch.float32), [f"{i}" for i in indexes]
    put, frames = over_the_wire(
        {"global_indexes": indexes, "data": packed({"tokens": tokens, "scores": scores, "words": words})}
    )
    assert frames == 3  # the message and two fields; with a frame for each row, 129
    assert storage._handle_put(put).request_type.name == "PUT_DATA_RESPONSE"

    asked, _ = over_the_wire({"global_indexes": indexes[::-2], "fields": ["tokens", "words", "scores"]})
    response = storage._handle_get(asked)
    answer, frames = over_the_wire(response.body)
    assert frames == 3
    found = unpacked(answer.body["data"])
    assert [row.tolist() for row in found["tokens"]] == [row.tolist() for row in tokens[::-2]]
    assert [row.tolist() for row in found["scores"]] == [row.tolist() for row in scores[::-2]]
    assert found["words"] == words[::-2]

    missing, _ = over_the_wire({"global_indexes": [1000], "fields": ["tokens"]})
    assert storage._handle_get(missing).request_type.name == "GET_ERROR"


def test_a_stored_row_keeps_no_others() -> None:
    """Neither in memory nor in a checkpoint: a view is pickled with all that it is a view of."""
    from dapo_trainer.verl_adapter.packed_rows import packed

    storage, indexes = unit(), list(range(100))
    put, _ = over_the_wire({"global_indexes": indexes, "data": packed({"tokens": rows(*[50] * 100)})})
    storage._handle_put(put)
    stored = storage.storage_data.field_data["tokens"][7]
    assert stored.untyped_storage().nbytes() == stored.nbytes
    file = io.BytesIO()
    pickle.dump(storage.storage_data.field_data, file)
    assert len(file.getvalue()) < 3 * 100 * 50 * 8


def test_the_queue_takes_them() -> None:
    from transfer_queue import metadata
    from transfer_queue.storage import StorageManagerFactory
    from transfer_queue.storage.bootstrap import simple_storage_bootstrap
    from transfer_queue.storage.managers import simple_storage_manager

    from dapo_trainer.verl_adapter import packed_rows

    before = dict(StorageManagerFactory._registry), simple_storage_bootstrap.SimpleStorageUnit
    theirs = packed_rows._schema_row_by_row
    try:
        packed_rows.install()
        assert StorageManagerFactory._registry["SimpleStorage"] is packed_rows.PackingManager
        add_fields, put_data = metadata.BatchMeta.add_fields, simple_storage_manager.AsyncSimpleStorageManager.put_data
        for function in (add_fields, put_data):
            assert function.__globals__["extract_field_schema"] is packed_rows.field_schema
        started = simple_storage_bootstrap.SimpleStorageUnit
        assert issubclass(started.__ray_metadata__.modified_class, packed_rows.PackingUnit)
    finally:
        StorageManagerFactory._registry, simple_storage_bootstrap.SimpleStorageUnit = before
        metadata.extract_field_schema = simple_storage_manager.extract_field_schema = theirs
