"""The contract of an object store, for each there is."""

import hashlib
import io
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from servers.minio import MinioServer
from servers.s3_model import AMAZON, CLOUDFLARE, GOOGLE, Manners, s3_model
from store_fakes import MemoryStore

from dapo_core.errors import StoreError
from dapo_core.objectstore import (
    Content,
    FolderStore,
    ObjectNotFoundError,
    ObjectStore,
    ObjectTooLargeError,
    measure,
    open_store,
)
from dapo_core.objectstore.contract import CHUNK, PART_BYTES
from dapo_core.objectstore.s3 import open_s3

MODELS = {"as Amazon": AMAZON, "as Google": GOOGLE, "as Cloudflare": CLOUDFLARE, "short pages": Manners(page=2)}
STORES = ("folder", "memory", "S3", "S3 over TLS", *MODELS)


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ObjectStore]:
    if request.param == "folder":
        yield FolderStore(tmp_path / "store")
    elif request.param == "memory":
        yield MemoryStore()
    elif request.param == "S3":
        yield open_s3(*request.getfixturevalue("s3"))
    elif request.param == "S3 over TLS":
        server: MinioServer = request.getfixturevalue("tls_minio")
        yield open_s3(server.url(server.new_bucket(), ""), server.environment)
    else:
        with s3_model(MODELS[request.param]) as model:
            yield open_s3(model.url(model.new_bucket()), model.environment)


def keys(store: ObjectStore, prefix: str) -> list[str]:
    return [info.key for info in store.list(prefix)]


def test_get_returns_what_was_put(store: ObjectStore, tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"file")
    store.put_bytes("a/b/bytes", b"bytes")
    assert store.put_file("a/b/file", tmp_path / "in") == Content(4, hashlib.sha256(b"file").hexdigest())
    store.put_bytes("a/empty", b"")
    assert store.get_bytes("a/b/bytes") == b"bytes"
    store.get_file("a/b/file", tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == b"file"
    with store.open("a/b/file") as stream:
        assert stream.read() == b"file"
    assert store.get_bytes("a/empty") == b""
    assert [(info.key, info.size) for info in store.list("a/")] == [("a/b/bytes", 5), ("a/b/file", 4), ("a/empty", 0)]


def test_a_large_file_is_identified_by_the_hashes_of_its_parts(store: ObjectStore, tmp_path: Path) -> None:
    path, data = tmp_path / "in", os.urandom(PART_BYTES) + b"end"
    path.write_bytes(data)
    sums = b"".join(hashlib.sha256(part).digest() for part in (data[:PART_BYTES], b"end"))
    expected = Content(len(data), hashlib.sha256(sums).hexdigest(), PART_BYTES)
    assert store.put_file("big", path) == expected
    with store.open("big") as stream, (tmp_path / "out").open("wb") as copied:
        assert measure(stream, copied, PART_BYTES) == expected
    assert (tmp_path / "out").read_bytes() == data


@pytest.mark.parametrize("size", [0, 1, CHUNK, CHUNK + 1])
def test_bytes_are_read_up_to_a_limit(store: ObjectStore, size: int) -> None:
    store.put_bytes("key", b"x" * size)
    assert store.get_bytes("key", size) == b"x" * size
    if size:
        with pytest.raises(ObjectTooLargeError, match=f"key has more than {size - 1:,} bytes"):
            store.get_bytes("key", size - 1)


def test_a_put_replaces(store: ObjectStore) -> None:
    store.put_bytes("key", b"old")
    store.put_bytes("key", b"new and longer")
    assert store.get_bytes("key") == b"new and longer"
    assert keys(store, "") == ["key"]


def test_a_file_that_was_put_may_be_changed_afterwards(store: ObjectStore, tmp_path: Path) -> None:
    path = tmp_path / "in"
    path.write_bytes(b"one")
    store.put_file("key", path)
    with path.open("r+b") as file:
        file.write(b"two")
    assert store.get_bytes("key") == b"one"


def test_missing_objects(store: ObjectStore, tmp_path: Path) -> None:
    assert not store.exists("none") and keys(store, "none/") == []
    store.delete("none")
    for get in (
        lambda: store.get_bytes("none"),
        lambda: store.get_file("none", tmp_path / "out"),
        lambda: store.open("none").__enter__(),
    ):
        with pytest.raises(ObjectNotFoundError, match="none"):
            get()
    with pytest.raises(StoreError, match="absent"):
        store.put_file("key", tmp_path / "absent")
    assert not store.exists("key")


def test_deleting(store: ObjectStore) -> None:
    for key in ("a/x", "a/y/z"):
        store.put_bytes(key, b"")
    store.delete("a/y/z")
    assert keys(store, "") == ["a/x"] and not store.exists("a/y/z")


PREFIXES = {
    "a folder": ("run/", ["run/1", "run/10", "run/deep/x"]),
    "a part of a name": ("run/1", ["run/1", "run/10"]),
    "not its sibling": ("run", ["run/1", "run/10", "run/deep/x", "running"]),
    "all": ("", ["run/1", "run/10", "run/deep/x", "running"]),
    "none": ("other/", []),
}


@pytest.mark.parametrize(("prefix", "expected"), PREFIXES.values(), ids=PREFIXES.keys())
def test_listing_is_by_prefix_and_in_order(prefix: str, expected: list[str], store: ObjectStore) -> None:
    for key in ("running", "run/10", "run/1", "run/deep/x"):
        store.put_bytes(key, b"")
    assert keys(store, prefix) == expected


def test_folders_are_the_first_parts_of_keys(store: ObjectStore) -> None:
    for key in ("run-b/1", "run-a/deep/x", "run-a/y", "file"):
        store.put_bytes(key, b"")
    assert list(store.folders()) == ["run-a", "run-b"]
    for key in ("run-a/deep/x", "run-a/y"):
        store.delete(key)
    assert list(store.folders()) == ["run-b"]


@pytest.mark.parametrize("key", ["", "/etc/passwd", "../outside", "a/../../b"], ids=repr)
def test_keys_cannot_lead_outside_the_store(key: str, store: ObjectStore) -> None:
    with pytest.raises(StoreError, match="not a relative path"):
        store.put_bytes(key, b"")


def test_readers_see_the_old_object_or_the_new_one(store: ObjectStore) -> None:
    contents = [bytes([letter]) * 200_000 for letter in b"ab"]
    store.put_bytes("key", contents[0])
    done = threading.Event()

    def write() -> None:
        for turn in range(60):
            store.put_bytes("key", contents[turn % 2])
        done.set()

    thread = threading.Thread(target=write)
    thread.start()
    while not done.is_set():
        assert store.get_bytes("key") in contents
    thread.join()


# The folder's own


@pytest.fixture
def folder(tmp_path: Path) -> FolderStore:
    return FolderStore(tmp_path / "store")


@pytest.mark.parametrize(
    ("data", "part_bytes", "sums"),
    [
        (b"", None, [b""]),
        (b"abc", None, [b"abc"]),
        (b"abcdef", 3, [b"abc", b"def"]),
        (b"abcdefg", 3, [b"abc", b"def", b"g"]),
        (os.urandom(700_000), 400_001, None),
    ],
    ids=["nothing", "as a whole", "whole parts", "a part that is left", "parts across what is read at a time"],
)
def test_how_content_is_hashed(data: bytes, part_bytes: int | None, sums: list[bytes] | None) -> None:
    parts = sums if sums is not None else [data[:400_001], data[400_001:]]
    digests = b"".join(hashlib.sha256(part).digest() for part in parts)
    whole = hashlib.sha256(data).hexdigest()
    expected = Content(len(data), hashlib.sha256(digests).hexdigest() if part_bytes else whole, part_bytes)
    assert measure(io.BytesIO(data), part_bytes=part_bytes) == expected


def test_a_given_file_is_linked(folder: FolderStore, tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(b"weights")
    assert folder.put_file("key", tmp_path / "in", give=True).size == 7
    assert os.path.samefile(tmp_path / "in", folder.root / "key")


def test_a_given_file_on_another_file_system_is_copied(folder: FolderStore) -> None:
    folder.put_file("key", Path("/proc/version"), give=True)
    assert folder.get_bytes("key") == Path("/proc/version").read_bytes()


def test_an_incomplete_upload_is_not_listed_and_is_cleaned_up(folder: FolderStore) -> None:
    folder.put_bytes("run/whole", b"")
    torn = folder.root / "run" / ".model.0123456789ab.dapo-part"
    torn.write_bytes(b"half")
    assert keys(folder, "run/") == ["run/whole"]
    assert folder.sweep_incomplete("run/", older_than_seconds=60) == 0
    os.utime(torn, (1, 1))
    assert folder.sweep_incomplete("run/", older_than_seconds=60) == 1
    assert not torn.exists() and folder.exists("run/whole")


def test_empty_folders_are_removed_with_their_last_object(folder: FolderStore) -> None:
    folder.put_bytes("run/deep/x", b"")
    folder.delete("run/deep/x")
    assert list(folder.root.iterdir()) == []


def test_a_full_disk_is_an_error_and_leaves_nothing(folder: FolderStore) -> None:
    with pytest.raises(StoreError, match=r"key cannot be written to .*: no space left on device; free some space\."):
        folder._put("key", _no_space)
    assert [path for path in folder.root.rglob("*") if path.is_file()] == []


def _no_space(part: Path) -> None:
    part.write_bytes(b"half")
    Path("/dev/full").write_bytes(b"x")


URLS = {
    "a plain path": ("runs/store", "has a scheme that is not supported; use s3://bucket/prefix or file:///folder"),
    "a relative file": ("file:runs/store", "is not an absolute folder"),
    "another host's file": ("file://host/store", "is not an absolute folder"),
}


@pytest.mark.parametrize(("url", "sentence"), URLS.values(), ids=URLS.keys())
def test_urls_that_cannot_be_opened(url: str, sentence: str) -> None:
    with pytest.raises(StoreError, match=sentence):
        open_store(url)


def test_a_folder_store_is_opened_by_its_url(tmp_path: Path) -> None:
    made = FolderStore(tmp_path / "a folder")
    made.put_bytes("key", b"x")
    assert open_store(made.url).get_bytes("key") == b"x"
