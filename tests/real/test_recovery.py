"""One run, its record in Postgres and its checkpoints in S3, and all that can befall it, test after test.

It goes on from its checkpoints, and in the end its curves have no hole and no point is stored twice.
"""

import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from patience import patient
from real_run import DapoRun, Starter, assert_curves_are_whole, assert_every_point_is_stored_once, kill
from servers.minio import MinioServer
from servers.postgres import PostgresServer

from dapo_core.db import roles, upgrade
from dapo_core.objectstore.s3 import open_s3
from dapo_core.run.reasons import ExitCode
from dapo_trainer.checkpoints.checkpoint_store import CheckpointStore
from dapo_trainer.process import fork_server

pytestmark = pytest.mark.timeout(900)

STEPS = 1000  # never reached: the run is stopped
EVERY = 2


class Stores:
    """Servers of this module's own, with a login and a user of no more rights than a trainer needs."""

    def __init__(self) -> None:
        self.postgres, self.minio = PostgresServer().start(), MinioServer()
        owner = self.postgres.new_database()
        upgrade(owner, with_roles=True)
        login = roles.grant(owner, "trainer", "writer", "default")
        assert login is not None
        bucket = self.minio.new_bucket()
        self.store_url = self.minio.url(bucket)
        # The machine's temporary folder, as the run sees it: short enough for sockets, which pytest's are not.
        self.temporary = Path(tempfile.mkdtemp(prefix="r-", dir="/tmp"))
        self.environment = self.minio.new_user(bucket) | {
            "DAPO_METADATA_URL": login.render_as_string(hide_password=False),
            "DAPO_STORE_URL": self.store_url,
            "TMPDIR": str(self.temporary),
        }

    def kill(self) -> None:
        self.postgres.kill()
        self.minio.kill()

    def start(self) -> None:
        self.postgres.start()
        self.minio.start()

    def close(self) -> None:
        self.postgres.close()
        self.minio.close()
        shutil.rmtree(self.temporary)


@dataclass
class Life:
    """The run as it is now; after a `resume` it is another process."""

    starter: Starter
    stores: Stores
    run: DapoRun

    def resume(self) -> DapoRun:
        return self.starter("resume", self.run.folder.name, self.stores.environment)

    @property
    def checkpoints(self) -> CheckpointStore:
        return CheckpointStore(open_s3(self.stores.store_url, self.stores.environment), self.run.folder.name)

    def committed(self) -> list[int]:
        """Steps of the checkpoints on record, the newest first."""
        rows = self.run.query("select step from checkpoints where state = 'committed' order by step desc")
        return [step for (step,) in rows]

    def temporary(self) -> list[Path]:
        """The machine's temporary folder without torch's cache of compiled kernels, which all runs share."""
        found = self.stores.temporary.iterdir()
        return [path for path in found if not path.name.startswith("torchinductor_")]

    def last_step(self) -> int:
        return self.run.steps()[-1][0]

    def goes_on(self, attempt: int) -> None:
        """Wait until an attempt has done a few steps, and with them a checkpoint."""
        self.run.wait_until(lambda: self._done(attempt) > EVERY, 240, f"{EVERY + 1} steps of attempt {attempt}")

    def _done(self, attempt: int) -> int:
        return len([step for step, of in self.run.steps() if of == attempt])


@pytest.fixture(scope="module")
def life(starter: Starter) -> Iterator[Life]:
    stores = Stores()
    try:
        fields = {"schedule__steps": STEPS, "schedule__checkpointEvery": EVERY}
        yield Life(starter, stores, starter("run", None, stores.environment, **fields))
    finally:
        starter.close()
        stores.close()


def test_another_process_is_refused(life: Life) -> None:
    life.goes_on(1)
    second = life.resume()
    assert second.end(30) == ExitCode.USAGE
    assert "already" in second.output.read_text() or str(life.run.process.pid) in second.output.read_text()


def _image(process: psutil.Process) -> bytes:
    """Other bytes after each execution of a program, the same in a fork."""
    return Path(f"/proc/{process.pid}/auxv").read_bytes()


def test_workers_and_engines_are_forked(life: Life) -> None:
    processes = [process for title in ("ray::", "EngineCore") for process in life.run.below(title)]
    assert any("WorkerDict" in " ".join(process.cmdline()) for process in processes)
    parents = {process.parent() for process in processes}
    (server,) = parents
    assert server is not None and server.name() == fork_server.NAME
    assert [process for process in processes if _image(process) != _image(server)] == []


def test_training_goes_on_without_its_stores(life: Life) -> None:
    life.stores.kill()
    reached = _spooled_to(life.run)
    life.run.wait_until(lambda: _spooled_to(life.run) >= reached + 3, 120, "three more steps without any store")
    life.stores.start()
    life.run.wait_for_step(reached + 3, attempt=1)
    # Noted after those steps, and so delivered after them.
    life.run.wait_until(lambda: _told(life.run) == {"StoreUnreachable", "StoreReachable"}, 60, "word of the outage")


def a_driver(run: DapoRun) -> psutil.Process:
    return run.trainer()


def an_engine(run: DapoRun) -> psutil.Process:
    return run.below("EngineCore")[0]


def a_worker(run: DapoRun) -> psutil.Process:
    return run.below("ray::WorkerDict")[0]


@pytest.mark.parametrize(
    ("number", "victim", "exit_code"),
    [
        pytest.param(1, a_driver, 137, id="the driver"),
        pytest.param(2, an_engine, 30, id="an engine"),
        pytest.param(3, a_worker, 30, id="a worker"),
    ],
)
def test_the_death_of(life: Life, number: int, victim: Callable[[DapoRun], psutil.Process], exit_code: int) -> None:
    """The next attempt goes on from a checkpoint."""
    kill(victim(life.run))
    life.goes_on(number + 1)
    ended = life.run.query("select exit_code from attempts where attempt = :number", number=number)
    assert ended == [(exit_code,)]


def test_a_killed_run_is_resumed_from_before_a_damaged_checkpoint(life: Life) -> None:
    life.run.process.send_signal(signal.SIGSTOP)  # it starts no other attempt meanwhile
    kill(life.run.trainer())
    life.run.process.kill()
    life.run.process.wait(patient(60))
    reached = life.last_step()
    # The store's own word: whoever was killed may not have told the database of the newest.
    newest, whole, *_ = [manifest.step for manifest in life.checkpoints.manifests()]
    _damage(life, newest)
    _forget_local_copies(life.run)
    life.run = life.resume()
    life.goes_on(5)
    life.run.wait_for_step(reached + 1, attempt=5)  # past everything that it repeats: its last step is the run's
    assert life.run.query("select step_from from attempts where attempt = 5") == [(whole,)]
    assert life.run.query("select 1 from events where reason = 'CheckpointDamaged'")


def test_ctrl_c_saves_the_last_whole_step(life: Life) -> None:
    life.run.process.send_signal(signal.SIGINT)
    assert life.run.end(120) == ExitCode.TERMINATED, life.run.tail()
    assert f"dapo resume {life.run.folder.name}" in life.run.output.read_text()
    assert life.committed()[0] == life.last_step()
    # Also what the attempt left whose supervisor was killed.
    assert life.temporary() == [], "what Ray, vLLM and verl left there goes with an attempt"


def test_every_attempt_began_at_a_checkpoint(life: Life) -> None:
    attempts = life.run.query("select attempt, step_from, step_to from attempts order by attempt")
    assert [number for number, *_ in attempts] == [1, 2, 3, 4, 5]
    starts = [step_from for _, step_from, _ in attempts]
    assert starts == sorted(starts) and starts[0] == 0 and all(step % EVERY == 0 for step in starts)
    assert starts[1] >= EVERY, "the first restart began from the start although a checkpoint was committed"
    for number, step_from, step_to in attempts:
        assert [step for step, of in life.run.steps() if of == number] == list(range(step_from + 1, step_to + 1))


def test_the_record_is_whole(life: Life) -> None:
    assert_curves_are_whole(life.run, life.last_step())
    assert_every_point_is_stored_once(life.run)


def test_checkpoints_are_whole_and_on_record(life: Life) -> None:
    manifests = life.checkpoints.manifests()
    assert manifests and manifests[0].step == life.last_step()
    for manifest in manifests:
        life.checkpoints.verify(manifest)
    assert life.committed() == [manifest.step for manifest in manifests]


def _told(run: DapoRun) -> set[str]:
    rows = run.query("select reason from events where reason in ('StoreUnreachable', 'StoreReachable')")
    return {reason for (reason,) in rows}


def _spooled_to(run: DapoRun) -> int:
    return max((step for _, step, *_ in run.spooled()), default=0)


def _damage(life: Life, step: int) -> None:
    store = open_s3(life.stores.store_url, life.stores.environment)
    folder = f"{life.run.folder.name}/checkpoints/step-{step:06d}-"
    victim = max((info for info in store.list(folder) if info.key.endswith(".pt")), key=lambda info: info.size)
    data = bytearray(store.get_bytes(victim.key))
    data[len(data) // 2] ^= 0xFF
    store.put_bytes(victim.key, bytes(data))


def _forget_local_copies(run: DapoRun) -> None:
    """As on another node: a copy that is whole would be taken instead of a damaged object."""
    for copy in [*run.folder.glob("attempt-*/global_step_*"), *run.folder.glob("attempt-*/checkpoints/global_step_*")]:
        shutil.rmtree(copy)
