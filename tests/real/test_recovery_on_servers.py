"""One run whose record is in Postgres and whose checkpoints are in S3: the servers are killed, then the run itself."""

import signal
from collections.abc import Callable, Iterator

import pytest
from real_run import DapoRun, assert_curves_are_whole, assert_every_point_is_stored_once, kill
from servers.minio import MinioServer
from servers.postgres import PostgresServer

from dapo_core.db import roles, upgrade
from dapo_core.objectstore.s3 import open_s3
from dapo_trainer.checkpoints import CheckpointStore

pytestmark = pytest.mark.timeout(900)

# Enough that the run is not done before it is killed, however long the sender waits for the database to come back.
STEPS = 40


class Stores:
    """Servers of this test's own, with a login and a user of no more rights than a trainer needs."""

    def __init__(self) -> None:
        self.postgres, self.minio = PostgresServer().start(), MinioServer()
        owner = self.postgres.new_database()
        upgrade(owner, with_roles=True)
        login = roles.grant(owner, "trainer", "writer", "default")
        assert login is not None
        bucket = self.minio.new_bucket()
        self.store_url = self.minio.url(bucket)
        self.environment = self.minio.new_user(bucket) | {
            "DAPO_METADATA_URL": login.render_as_string(hide_password=False),
            "DAPO_STORE_URL": self.store_url,
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


@pytest.fixture
def stores() -> Iterator[Stores]:
    started = Stores()
    yield started
    started.close()


def test_killed_servers_and_a_killed_run_cost_no_point_and_no_checkpoint(
    dapo: Callable[..., DapoRun], stores: Stores
) -> None:
    run = dapo(environment=stores.environment, schedule__steps=STEPS)
    run.wait_for_step(3, attempt=1)

    stores.kill()
    reached = _spooled_to(run)
    run.wait_until(lambda: _spooled_to(run) >= reached + 3, 120, "three more steps without any store")
    stores.start()
    run.wait_for_step(reached + 3, attempt=1)

    run.process.send_signal(signal.SIGSTOP)  # it starts no other attempt meanwhile
    kill(run.trainer())
    run.process.kill()
    run.process.wait(30)
    resumed = dapo("resume", run.folder.name, environment=stores.environment)
    assert resumed.end(400) == 0, resumed.tail()

    assert_curves_are_whole(resumed, STEPS)
    assert_every_point_is_stored_once(resumed)
    _checkpoints_are_whole_and_on_record(resumed, stores)
    (first, second) = resumed.query("select attempt, step_from, step_to from attempts order by attempt")
    assert first[1] == 0 and 0 < second[1] <= first[2] < STEPS == second[2], (first, second)


def _spooled_to(run: DapoRun) -> int:
    return max((step for _, step, *_ in run.spooled()), default=0)


def _checkpoints_are_whole_and_on_record(run: DapoRun, stores: Stores) -> None:
    checkpoints = CheckpointStore(open_s3(stores.store_url, stores.environment), run.folder.name)
    manifests = checkpoints.list()
    assert manifests and manifests[0].step == STEPS
    for manifest in manifests:
        checkpoints.verify(manifest)
    recorded = run.query("select step from checkpoints where state = 'committed' order by step desc")
    assert [step for (step,) in recorded] == [manifest.step for manifest in manifests]
    rows = run.query("select reason from events where reason in ('StoreUnreachable', 'StoreReachable')")
    assert {reason for (reason,) in rows} == {"StoreUnreachable", "StoreReachable"}
