"""A real Postgres on bad days: whatever befalls it, each point of the spool is there once, and training never waits."""

import gc
import os
import random
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest
from servers.postgres import PostgresServer, plain

from dapo_core.db import MetadataWriter, open_reader, open_writer
from dapo_trainer.backoff import Backoff
from dapo_trainer.sender import Sender, drain
from dapo_trainer.spool import Spool, read_records

# A connection that breaks while SQLAlchemy opens it is left to the garbage collector, which says so.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

QUICK = Backoff(0.02, 0.2)  # minutes become seconds
PATIENCE = 60.0
RUN = "r"


class Training:
    """Reports a step each few milliseconds until it is ended, as a trainer does, beside a sender."""

    def __init__(self, folder: Path, url: str, attempt: int = 1, first: int = 1) -> None:
        self.folder, self.url, self.attempt = folder, url, attempt
        self.spool = Spool(folder, attempt, segment_bytes=20_000)
        self.told: list[str] = []
        self.writer: MetadataWriter = open_writer(url)
        self.sender = Sender(
            folder, self.writer, RUN, poll_seconds=0.01, verify_seconds=0.5, backoff=QUICK, tell=self._tell
        )
        self.step = first
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._train)
        self._thread.start()

    def _tell(self, reason: str, message: str) -> None:
        self.told.append(reason)
        self.spool.event(reason, message)

    def _train(self) -> None:
        while not self._ended.wait(0.002):
            self.spool.step(self.step, {f"m/{number}": self.step + number / 8 for number in range(10)})
            self.step += 1

    def until_delivered(self, more: int) -> None:
        """Go on until so many more steps have arrived."""
        then = self.delivered()
        wait_until(lambda: self.delivered() >= then + more, f"{more} more steps than {then} arrive")

    def delivered(self) -> int:
        points = open_reader(self.url).latest(RUN)
        return max((point.step for point in points.values()), default=0)

    def close(self, seconds: float = PATIENCE) -> bool:
        self._ended.set()
        self._thread.join()
        written = self.spool.close()
        return self.sender.close(seconds) and written


def wait_until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline, f"not within {PATIENCE:g} s: {what}"
        time.sleep(0.02)


def assert_each_point_once(url: str, *folders: Path) -> None:
    """The rows of the database against the records of the spools."""
    points, events = [], set()
    for folder in folders:
        for record in read_records(folder):
            if record.kind == "step":
                points += [(name, record.step, record.attempt, value) for name, value in record.numbers.items()]
            else:
                events.add(record.body["dedup_key"])
    query = "SELECT name, step, attempt, value FROM points JOIN metric_names USING (metric_id)"
    with psycopg.connect(plain(url)) as connection:
        stored = connection.execute(query).fetchall()
        counted = connection.execute("SELECT sum(count) FROM rollups WHERE width = 16").fetchone()
        told = {key for (key,) in connection.execute("SELECT dedup_key FROM events").fetchall()}
        rolled = connection.execute(
            "SELECT count(DISTINCT (metric_id, points.step)) FROM points JOIN latest USING (run_id, metric_id) "
            "WHERE points.step < rolled_to"
        ).fetchone()
    assert sorted(stored) == sorted(points) and told == events
    assert counted == rolled and rolled is not None and rolled[0] > 0


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
        full = False
        while not full or "StoreUnreachable" not in training.told:
            try:
                held.enter_context(psycopg.connect(plain(server.url("postgres"))))
            except psycopg.OperationalError:
                full = True
            admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'dapo-%'")
        wait_until(lambda: training.sender.lag.records > 100, "the spool fills")
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


def test_an_older_copy_takes_its_place(server: PostgresServer, training: Training, tmp_path: Path) -> None:
    server.stop()
    copy = tmp_path / "copy"
    shutil.copytree(server.data, copy, copy_function=_copy_owned)
    server.start()
    training.until_delivered(300)
    server.kill()
    _replace(server.data, copy)
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
    shutil.copytree(server.data, copy, copy_function=_copy_owned)
    server.start()
    training.until_delivered(100)
    assert training.close()
    server.kill()
    _replace(server.data, copy)
    server.start()
    with pytest.raises(AssertionError):
        assert_each_point_once(training.url, training.folder)
    assert drain(training.folder, open_writer(training.url), RUN, PATIENCE)  # as a resume does first
    assert_each_point_once(training.url, training.folder)


def _copy_owned(source: str, target: str) -> None:
    shutil.copy2(source, target)
    _own_as(source, target)


def _own_as(source: Path | str, target: Path | str) -> None:
    status = os.stat(source)
    os.chown(target, status.st_uid, status.st_gid)


def _replace(data: Path, copy: Path) -> None:
    """Put the copy where the server's data were, folders owned as these."""
    folders = {path.relative_to(data) for path in data.rglob("*") if path.is_dir()}
    for folder in folders:
        if (copy / folder).is_dir():
            _own_as(data / folder, copy / folder)
    _own_as(data, copy)
    copy.chmod(0o700)
    shutil.rmtree(data)
    shutil.move(copy, data)


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
