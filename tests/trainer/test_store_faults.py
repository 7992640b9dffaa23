"""A real Postgres on bad days: whatever befalls it, each point of the spool is there once, and training never waits."""

import gc
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import psycopg
import pytest
from servers.postgres import PostgresServer, plain
from store_training import PATIENCE, QUICK, RUN, Training, assert_each_point_once, wait_until

from dapo_core.db import open_reader, open_writer
from dapo_core.objectstore import FolderStore
from dapo_trainer.checkpoints.checkpoint_store import CheckpointStore
from dapo_trainer.spool import Sender, StoredTail, drain

COMMITTING = Path(__file__).parent / "fakes" / "committing_metrics.py"

# A connection that breaks while SQLAlchemy opens it is left to the garbage collector, which says so.
pytestmark = [pytest.mark.server, pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")]


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    # A process that is killed leaves what it wrote with the kernel: syncing to the disk would prove nothing more.
    started = PostgresServer(settings={"fsync": "off", "max_connections": "12"}).start()
    yield started
    started.close()


@pytest.fixture
def training(server: PostgresServer, tmp_path: Path) -> Iterator[Training]:
    started = Training(tmp_path / "spool", server.new_database(upgraded=True))
    started.until_delivered(1)
    yield started
    started.close(0.1)
    gc.collect()


def test_stopped_for_minutes(server: PostgresServer, training: Training) -> None:
    server.stop()
    wait_until(lambda: "StoreUnreachable" in training.told and training.sender.lag.records > 300, "the spool fills")
    assert training.sender.lag.seconds > 0
    server.start()
    training.until_delivered(50)
    assert training.close()
    assert training.told == ["StoreUnreachable", "StoreReachable"]
    assert_each_point_once(training.url, training.folder)


def test_killed_in_the_middle_of_transactions(server: PostgresServer, training: Training) -> None:
    chance = random.Random(7)
    for _ in range(4):
        training.until_delivered(5)
        time.sleep(chance.uniform(0, 0.05))
        server.kill()
        server.start()
    assert training.close()
    assert_each_point_once(training.url, training.folder)


def test_its_connections_are_cut_at_any_moment(server: PostgresServer, training: Training) -> None:
    with psycopg.connect(plain(server.url("postgres")), autocommit=True) as admin:
        for _ in range(20):
            admin.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'dapo-writer'"
            )
            time.sleep(0.02)
    assert training.close()
    assert_each_point_once(training.url, training.folder)


def test_no_connection_is_left(server: PostgresServer, training: Training) -> None:
    with ExitStack() as held:
        admin = held.enter_context(psycopg.connect(plain(server.url("postgres")), autocommit=True))

        def squeezed() -> bool:
            """Every free connection is taken, and what the training got meanwhile is free the next time."""
            with suppress(psycopg.OperationalError):
                while True:
                    held.enter_context(psycopg.connect(plain(server.url("postgres"))))
            admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'dapo-%'")
            return "StoreUnreachable" in training.told and training.sender.lag.records > 100

        wait_until(squeezed, "the spool fills")
    training.until_delivered(50)
    assert training.close()
    assert_each_point_once(training.url, training.folder)


def test_it_hangs(server: PostgresServer, training: Training) -> None:
    server.pause()
    try:
        then = training.step
        wait_until(lambda: training.spool.stats.written > then + 200, "training goes on")
        began = time.monotonic()
        assert not training.close(0.5)
        assert time.monotonic() - began < 30
    finally:
        server.resume()
    assert drain(training.folder, open_writer(training.url), RUN, PATIENCE)
    assert_each_point_once(training.url, training.folder)


def test_it_is_away_while_a_pod_ends(server: PostgresServer, tmp_path: Path) -> None:
    """B6: the pod's disk goes with it; the next attempt brings what was recorded up to the last checkpoint."""
    url, disk, store = server.new_database(upgraded=True), tmp_path / "disk", FolderStore(tmp_path / "store")
    head = subprocess.Popen([sys.executable, str(COMMITTING), str(disk), store.url, url, "1"], stdout=subprocess.PIPE)
    assert head.stdout is not None
    try:
        head.stdout.readline()
        server.stop()
        for _ in range(10):
            head.stdout.readline()
    finally:
        head.kill()
        head.wait()
    shutil.rmtree(disk)
    server.start()
    committed = CheckpointStore(store, RUN).steps()[0]
    tail = StoredTail(store, RUN)
    sender = Sender(tmp_path / "next" / "spool", open_writer(url), RUN, backoff=QUICK)
    sender.add_earlier(tail.fetch(tmp_path / "next" / "earlier-spools"))
    assert sender.close(PATIENCE) and tail.remove_delivered() == 0
    found = [point.step for point in open_reader(url).curve(RUN, "m/0")]
    assert found[:committed] == list(range(1, committed + 1)) and committed >= 50
    head.stdout.close()


def test_an_older_copy_takes_its_place(server: PostgresServer, training: Training, tmp_path: Path) -> None:
    server.stop()
    copy = tmp_path / "copy"
    shutil.copytree(server.data, copy)
    server.start()
    training.until_delivered(300)
    server.kill()
    server.put_back(copy)
    server.start()
    training.until_delivered(50)
    assert training.close()
    assert "StoreBehind" in training.told
    assert_each_point_once(training.url, training.folder)


def test_an_older_copy_takes_its_place_when_all_is_done(
    server: PostgresServer, training: Training, tmp_path: Path
) -> None:
    server.stop()
    copy = tmp_path / "copy"
    shutil.copytree(server.data, copy)
    server.start()
    training.until_delivered(100)
    assert training.close()
    server.kill()
    server.put_back(copy)
    server.start()
    with pytest.raises(AssertionError):
        assert_each_point_once(training.url, training.folder)
    assert drain(training.folder, open_writer(training.url), RUN, PATIENCE)  # as a resume does first
    assert_each_point_once(training.url, training.folder)


@pytest.fixture
def small_disk() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="dapo-small-disk-"))
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=120m,mode=0755", "tmpfs", str(folder)], capture_output=True, text=True
    )
    assert mounted.returncode == 0, f"A full disk needs a small one, mounted as root: {mounted.stderr}"
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)
    folder.rmdir()


def test_its_disk_is_full(small_disk: Path, tmp_path: Path) -> None:
    settings = {"fsync": "off", "max_wal_size": "32MB", "min_wal_size": "32MB", "shared_buffers": "16MB"}
    server = PostgresServer(small_disk / "postgres", settings=settings).start()
    try:
        training = Training(tmp_path / "spool", server.new_database(upgraded=True))
        training.until_delivered(20)
        filler = small_disk / "filler"
        with filler.open("wb") as file:
            wait_until(lambda: _fill(file.fileno()) and "StoreUnreachable" in training.told, "the disk is full")
        wait_until(lambda: training.sender.lag.records > 200, "the spool fills")
        filler.unlink()
        server.revive()
        training.until_delivered(50)
        assert training.close()
        assert_each_point_once(training.url, training.folder)
    finally:
        server.close()


def _fill(descriptor: int) -> bool:
    """Take what is left of the disk; always True."""
    try:
        while os.write(descriptor, b"\0" * 65_536):
            pass
    except OSError:
        return True
    return True
