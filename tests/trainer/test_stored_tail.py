"""Metrics that the database has not confirmed survive the pod, in the object store (B6)."""

import shutil
from pathlib import Path

import pytest
from sqlite_store import reader, url, writer
from store_fakes import FlakySink, MemoryStore
from typer.testing import CliRunner

from dapo_core.backoff import Backoff
from dapo_core.cli.db import db
from dapo_core.db import MetadataReader, MetadataWriter, RunRow, WriteBatch
from dapo_core.errors import StoreError
from dapo_core.objectstore import FolderStore
from dapo_trainer.spool import Delivery, Sender, Spool, StoredTail, drain

__all__ = ["reader", "url", "writer"]

RUN = "r"


def spool_steps(folder: Path, *steps: int) -> None:
    spool = Spool(folder, 1, segment_bytes=300)  # two or three records
    for step in steps:
        spool.step(step, {"loss": step / 2})
        spool.sync(10)
    assert spool.close()


def steps(reader: MetadataReader) -> list[int]:
    return [point.step for point in reader.curve(RUN, "loss")]


def test_what_is_not_delivered_outlives_the_disk(
    tmp_path: Path, writer: MetadataWriter, reader: MetadataReader
) -> None:
    store, disk = MemoryStore(), tmp_path / "first" / "spool"
    spool_steps(disk, *range(1, 10))
    Delivery(disk, writer, RUN).deliver(4)
    StoredTail(store, RUN).save(disk, 1)
    assert not any(key.endswith("000000000001.jsonl") for key in store.objects), "delivered records are stored"
    shutil.rmtree(disk)

    tail = StoredTail(store, RUN)
    sender = Sender(tmp_path / "second", writer, RUN, poll_seconds=0.01)
    sender.add_earlier(tail.fetch(tmp_path / "earlier"))
    assert sender.close(30)
    assert steps(reader) == list(range(1, 10))
    assert tail.remove_delivered() == 0 and not store.objects


def test_only_what_is_new_is_stored_and_what_was_delivered_is_removed(tmp_path: Path, writer: MetadataWriter) -> None:
    store, disk = MemoryStore(), tmp_path / "spool"
    tail = StoredTail(store, RUN)
    spool_steps(disk, *range(1, 6))
    tail.save(disk, 1)
    first = len(store.log)
    tail.save(disk, 1)
    assert len(store.log) == first
    spool_steps(disk, 6, 7)
    tail.save(disk, 1)
    assert len(store.log) - first <= 3  # the open segment, and what came after it
    assert drain(disk, writer, RUN, 30)
    tail.save(disk, 1)
    assert not store.objects


@pytest.mark.parametrize("made", [False, True], ids=["no folder", "no record"])
def test_a_spool_without_records_stores_nothing(made: bool, tmp_path: Path) -> None:
    """As of an attempt that ends before it has reported anything."""
    store = MemoryStore()
    if made:
        Spool(tmp_path / "spool", 1).close()
    StoredTail(store, RUN).save(tmp_path / "spool", 1)
    assert not store.objects


def test_a_database_that_is_still_away_leaves_them_stored(tmp_path: Path) -> None:
    store, disk = MemoryStore(), tmp_path / "spool"
    spool_steps(disk, 1, 2)
    StoredTail(store, RUN).save(disk, 1)
    before = dict(store.objects)

    def away(_batch: WriteBatch) -> None:
        raise StoreError("away")

    tail = StoredTail(store, RUN)
    sender = Sender(tmp_path / "second", FlakySink(away), RUN, poll_seconds=0.01, backoff=Backoff(0.01, 0.02))
    sender.add_earlier(tail.fetch(tmp_path / "earlier"))
    assert not sender.close(0.2)
    assert tail.remove_delivered() == 1 and store.objects == before


def test_what_a_living_attempt_has_added_since_stays(tmp_path: Path, writer: MetadataWriter) -> None:
    store, disk = MemoryStore(), tmp_path / "spool"
    spool_steps(disk, 1)
    alive, other = StoredTail(store, RUN), StoredTail(store, RUN)
    alive.save(disk, 1)
    (folder,) = other.fetch(tmp_path / "fetched")
    assert drain(folder, writer, RUN, 30)
    spool_steps(disk, 2)
    alive.save(disk, 1)
    other.remove_delivered()
    assert len(store.objects) == 1


@pytest.mark.parametrize("name", ["attempt-1-../../x/000000000001.jsonl", "notes.txt", "attempt-1-ab/1.jsonl"])
def test_other_objects_are_left_alone(name: str, tmp_path: Path) -> None:
    store = MemoryStore()
    store.objects[f"{RUN}/spool/{name}"] = (b"", 0.0)
    tail = StoredTail(store, RUN)
    assert tail.fetch(tmp_path) == [] and tail.remove_delivered() == 0 and len(store.objects) == 1


def test_dapo_db_deliver(tmp_path: Path, url: str, writer: MetadataWriter, reader: MetadataReader) -> None:
    store, disk = FolderStore(tmp_path / "store"), tmp_path / "spool"
    writer.create_run(RunRow(RUN, "job", "default", {}, created_at=1.0))
    spool_steps(disk, 1, 2, 3)
    StoredTail(store, RUN).save(disk, 1)
    words = ["deliver", "--metadata", url, "--store", store.url]
    shown = CliRunner().invoke(db, words)
    assert shown.exit_code == 0 and "r: 1 spool delivered, 0 left." in shown.output
    assert steps(reader) == [1, 2, 3] and not list(store.list(""))
    assert CliRunner().invoke(db, [*words, RUN]).output == "Nothing is left to deliver.\n"
