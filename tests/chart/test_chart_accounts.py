"""The chart's own logins and users on real servers: each team reaches what is its own, the dashboard reads all."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from servers.minio import ROOT, MinioServer
from servers.postgres import PostgresServer

from dapo_core.db import open_reader, open_writer, upgrade
from dapo_core.errors import StoreError
from dapo_core.objectstore.s3 import open_s3
from dapo_core.run.store_rows import RunRow
from dapo_operator.accounts import Accounts, grant_logins, login, make_users, store_user

TEAMS = ("team-a", "team-b")
BUCKET = "dapo"


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("secrets")
    names = [f"{kind}-password.{team}" for kind in ("writer", "minio") for team in TEAMS]
    for name in [*names, "reader-password", "acknowledger-password", "minio-reader-password"]:
        (folder / name).write_text(f"secret-of-{name}")
    (folder / "minio-root-password").write_text(ROOT[1])
    return folder


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    server = PostgresServer(fsync=False).start()
    yield server
    server.close()


@pytest.fixture(scope="module")
def minio() -> Iterator[MinioServer]:
    server = MinioServer()
    yield server
    server.close()


def test_logins(postgres: PostgresServer, secrets: Path) -> None:
    database = postgres.new_database()
    upgrade(database, with_roles=True)
    accounts = Accounts(TEAMS, secrets, BUCKET, database=database)
    grant_logins(accounts, database)
    grant_logins(accounts, database)  # an upgrade of the chart does it again
    name = database.rpartition("/")[2]
    for team in TEAMS:
        url = postgres.url(name, login(team), accounts.secret(f"writer-password.{team}"))
        writer = open_writer(url)
        writer.create_run(RunRow(run_id=f"run-of-{team}", name="job", namespace=team, spec={}, created_at=0.0))
        assert [run.run_id for run in open_reader(url).runs()] == [f"run-of-{team}"]
    for person, key in (("dapo_dashboard", "reader-password"), ("dapo_clerk", "acknowledger-password")):
        runs = open_reader(postgres.url(name, person, accounts.secret(key))).runs()
        assert {run.namespace for run in runs} == set(TEAMS)


def test_users(minio: MinioServer, secrets: Path) -> None:
    accounts = Accounts(TEAMS, secrets, BUCKET, endpoint=minio.endpoint, root_user=ROOT[0])
    make_users(accounts, minio.endpoint)
    make_users(accounts, minio.endpoint)

    def environment(user: str, key: str) -> dict[str, str]:
        return {"DAPO_S3_ACCESS_KEY": user, "DAPO_S3_SECRET_KEY": accounts.secret(key)}

    for team, other in (TEAMS, TEAMS[::-1]):
        mine = environment(store_user(team), f"minio-password.{team}")
        store = open_s3(minio.url(BUCKET, team), mine)
        store.put_bytes("run/a", b"1")
        assert [each.key for each in store.list("")] == ["run/a"]
        assert store.sweep_incomplete("", 0) == 0
        theirs = open_s3(minio.url(BUCKET, other), mine)
        for attempt in (
            lambda theirs=theirs: theirs.get_bytes("run/a"),
            lambda theirs=theirs: list(theirs.list("")),
            lambda theirs=theirs: theirs.put_bytes("run/b", b""),
            lambda theirs=theirs: theirs.delete("run/a"),
        ):
            with pytest.raises(StoreError, match="do not permit"):
                attempt()
    reader = open_s3(minio.url(BUCKET, ""), environment("dapo-dashboard", "minio-reader-password"))
    assert reader.get_bytes("team-a/run/a") == b"1"
    with pytest.raises(StoreError, match="do not permit"):
        reader.put_bytes("team-a/run/a", b"2")
