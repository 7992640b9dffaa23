"""Checkpoints on a real S3 server on bad days: training goes on, and what is broken is never resumed from."""

import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from patience import patient
from servers.minio import MinioServer
from servers.s3_proxy import Fault, S3Proxy, proxied
from servers.s3_server import S3Server
from store_fakes import Notebook
from urllib3.util import Retry

from dapo_core.backoff import Backoff
from dapo_core.errors import CheckpointError, StoreError
from dapo_core.naming import checkpoint_prefix, manifest_key
from dapo_core.objectstore import StoreUnreachableError
from dapo_core.objectstore.s3 import RETRIES, open_s3
from dapo_core.run.checkpoint import Retention
from dapo_trainer.checkpoints.checkpoint_store import CheckpointStore, LocalCheckpoint
from dapo_trainer.checkpoints.uploader import CheckpointUploader

QUICK: Retry = RETRIES.new(total=2, connect=2, backoff_factor=0.01, backoff_jitter=0.0)
AGAIN = Backoff(0.02, 0.1)
SIZE = 2_000_000


class Bench:
    """A trainer's uploads to one bucket of a server, past a proxy."""

    def __init__(self, server: S3Server, proxy: S3Proxy, folder: Path, user: dict[str, str] | None = None) -> None:
        self.server, self.proxy, self.folder = server, proxy, folder
        self.bucket = server.new_bucket()
        self.notes = Notebook()
        self.url = server.url(self.bucket, endpoint=proxy.endpoint)
        self.checkpoints = CheckpointStore(open_s3(self.url, user or server.environment, QUICK), "r", self.notes)
        self.uploader = CheckpointUploader(self.checkpoints, Retention(keep_last=2), backoff=AGAIN)

    def upload(self, step: int) -> None:
        """What training does: it must not wait."""
        made = self.folder / f"global_step_{step}"
        (made / "actor" / "huggingface").mkdir(parents=True)
        (made / "actor" / "model.pt").write_bytes(random.Random(step).randbytes(SIZE))
        (made / "actor" / "huggingface" / "tokenizer.json").write_bytes(b"{}" * 1000)
        began = time.monotonic()
        self.uploader.upload(LocalCheckpoint(step, made, 1, "d"))
        assert time.monotonic() - began < 5, "however the store is"

    def commit(self, *steps: int) -> None:
        for step in steps:
            self.upload(step)
            assert self.uploader.wait(patient(30))

    def until(self, holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + patient(30)
        while not holds():
            assert time.monotonic() < deadline, self.notes.events
            time.sleep(0.02)

    def told(self, reason: str) -> str:
        return next(message for told, message in self.notes.events if told == reason)

    def resumed_from(self) -> int:
        """The step that a next attempt goes on from, by a client of its own that nothing stands before."""
        store = open_s3(self.server.url(self.bucket), self.server.environment, QUICK)
        found = CheckpointStore(store, "r").restore_newest(self.folder / "restored")
        assert found is not None
        model = (self.folder / "restored" / "actor" / "model.pt").read_bytes()
        assert model == random.Random(found.step).randbytes(SIZE)
        return found.step


@pytest.fixture
def proxy(s3_server: S3Server) -> Iterator[S3Proxy]:
    with proxied(s3_server.endpoint) as proxy:
        yield proxy


@pytest.fixture
def bench(s3_server: S3Server, proxy: S3Proxy, tmp_path: Path) -> Bench:
    return Bench(s3_server, proxy, tmp_path)


def test_errors_to_a_share_of_the_requests(bench: Bench) -> None:
    dice = random.Random(3)
    bench.proxy.faults = lambda _method, _path: Fault(503) if dice.random() < 0.3 else None
    bench.commit(5, 10, 15)
    assert bench.uploader.failures == 0 and bench.resumed_from() == 15


def test_a_slow_store(bench: Bench) -> None:
    bench.proxy.faults = lambda _method, _path: Fault(delay_seconds=0.1)
    bench.upload(5)
    bench.upload(10)
    assert bench.uploader.busy, "training goes on while it is stored"
    assert bench.uploader.close(patient(60)) and bench.resumed_from() == 10


def test_cut_off_between_the_files_and_the_manifest(bench: Bench) -> None:
    bench.commit(5)
    bench.proxy.faults = lambda method, path: Fault(503) if method == "PUT" and "manifest" in path else None
    bench.upload(10)
    bench.until(lambda: "CheckpointDelayed" in bench.notes.reasons())
    assert not bench.uploader.close(0.5), "the trainer ends, and does not wait for ever"
    assert bench.resumed_from() == 5
    bench.proxy.faults = lambda _method, _path: None
    assert bench.checkpoints.sweep(grace_seconds=0) == [10]
    assert bench.checkpoints.steps() == [5]


def test_a_bucket_that_is_removed_and_comes_back(bench: Bench) -> None:
    bench.server.client.remove_bucket(bench.bucket)
    bench.upload(5)
    bench.until(lambda: "CheckpointDelayed" in bench.notes.reasons())
    assert f"the bucket {bench.bucket} does not exist" in bench.told("CheckpointDelayed")
    with pytest.raises(StoreError, match="does not exist"):
        bench.resumed_from()
    bench.server.client.make_bucket(bench.bucket)
    assert bench.uploader.close(patient(30)) and bench.resumed_from() == 5


def test_a_full_bucket(minio: MinioServer, proxy: S3Proxy, tmp_path: Path) -> None:
    bench = Bench(minio, proxy, tmp_path)
    bench.commit(5)
    minio.admin.bucket_quota_set(bench.bucket, SIZE // 2)
    bench.upload(10)
    bench.until(lambda: "CheckpointDelayed" in bench.notes.reasons())
    assert "the bucket's quota is reached; raise it, or keep fewer checkpoints" in bench.told("CheckpointDelayed")
    assert bench.resumed_from() == 5
    minio.admin.bucket_quota_clear(bench.bucket)
    assert bench.uploader.close(patient(30)) and bench.resumed_from() == 10


def test_credentials_that_are_withdrawn(minio: MinioServer, proxy: S3Proxy, tmp_path: Path) -> None:
    user = minio.new_user()
    bench = Bench(minio, proxy, tmp_path, minio.session(user))
    bench.commit(5)
    minio.admin.user_disable(user["DAPO_S3_ACCESS_KEY"])
    bench.upload(10)
    bench.until(lambda: "CheckpointDelayed" in bench.notes.reasons())
    assert "the credentials do not permit this; grant them" in bench.told("CheckpointDelayed")
    with pytest.raises(StoreError) as refused:
        bench.checkpoints.restore_newest(tmp_path / "resumed")
    assert not isinstance(refused.value, CheckpointError), "it is no checkpoint's fault, and no reason to start over"
    minio.admin.user_enable(user["DAPO_S3_ACCESS_KEY"])
    assert bench.uploader.close(patient(30)) and bench.resumed_from() == 10


def test_an_expired_session(bench: Bench, tmp_path: Path) -> None:
    bench.commit(5)
    bench.proxy.faults = lambda _method, _path: Fault(400, "ExpiredToken")
    bench.upload(10)
    bench.until(lambda: "CheckpointDelayed" in bench.notes.reasons())
    assert "the credentials have expired; put new ones into" in bench.told("CheckpointDelayed")
    with pytest.raises(StoreError, match="the credentials have expired"):
        bench.checkpoints.restore_newest(tmp_path / "resumed")
    assert not bench.uploader.close(0.2) and bench.resumed_from() == 5


DAMAGES: dict[str, tuple[str, bytes]] = {
    "a truncated model": ("actor/model.pt", b"weights"),
    "an emptied model": ("actor/model.pt", b""),
    "a changed model of the same size": ("actor/model.pt", bytes(SIZE)),
    "a truncated manifest": ("manifest.json", b'{"run_id": "r", "st'),
}


@pytest.mark.parametrize(("name", "content"), DAMAGES.values(), ids=DAMAGES.keys())
def test_an_object_changed_behind_our_back(name: str, content: bytes, bench: Bench, tmp_path: Path) -> None:
    bench.commit(5, 10)
    bench.checkpoints.store.put_bytes(checkpoint_prefix("r", 10, 1) + name, content)
    found = bench.checkpoints.restore_newest(tmp_path / "resumed")
    assert found is not None and found.step == 5
    assert "Trying the previous checkpoint." in bench.told("CheckpointDamaged") and bench.notes.states()[10] == "failed"
    # The next upload is not hindered by it, and heals the run.
    bench.commit(15)
    assert bench.resumed_from() == 15


def test_a_damaged_shared_file_does_not_outlive_the_attempt(bench: Bench, tmp_path: Path) -> None:
    bench.commit(5)
    [shared] = bench.checkpoints.listing().shared
    bench.checkpoints.store.put_bytes(shared, b"torn")
    with pytest.raises(CheckpointError, match="No checkpoint of this run is intact"):
        bench.checkpoints.restore_newest(tmp_path / "resumed")
    bench.commit(10)
    assert bench.resumed_from() == 10, "one of another size is stored again"
    bench.checkpoints.store.put_bytes(shared, b"[]" * 1000)
    again = CheckpointStore(bench.checkpoints.store, "r")
    again.commit(LocalCheckpoint(15, bench.folder / "global_step_10", 2, "d"))
    assert again.restore_newest(tmp_path / "resumed") is not None, "and any, by another process"


@pytest.mark.server
def test_a_server_that_is_killed_and_comes_back(s3_server: S3Server, tmp_path: Path) -> None:
    server = type(s3_server)()
    try:
        with proxied(server.endpoint) as proxy:
            bench = Bench(server, proxy, tmp_path)
            bench.commit(5)
            server.kill()
            bench.upload(10)
            bench.until(lambda: "CheckpointDelayed" in bench.notes.reasons())
            with pytest.raises(StoreUnreachableError, match="cannot be reached"):
                bench.resumed_from()
            server.start()
            assert bench.uploader.close(patient(60)) and bench.resumed_from() == 10
            assert bench.notes.states() == {5: "committed", 10: "committed"}
    finally:
        server.close()


def test_restoring_survives_broken_connections(bench: Bench, tmp_path: Path) -> None:
    bench.commit(5)
    cuts = iter([Fault(cut_after=100_000)] * 3)
    bench.proxy.faults = lambda method, path: next(cuts, None) if method == "GET" and "model.pt" in path else None
    assert bench.checkpoints.restore_newest(tmp_path / "resumed") is not None
    gets = [path for method, path in bench.proxy.requests if method == "GET" and "model.pt" in path]
    assert len(gets) == 4


def test_the_manifest_is_put_last(bench: Bench) -> None:
    bench.commit(5)
    puts = [path for method, path in bench.proxy.requests if method == "PUT"]
    assert puts[-1].endswith(manifest_key("r", 5, 1)) and len(puts) == 3
    assert os.path.basename(puts[0]) != "manifest.json"
