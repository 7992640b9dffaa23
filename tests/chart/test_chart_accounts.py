"""The chart's own logins and users on real servers: each team reaches what is its own, the dashboard reads all."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from minio import MinioAdmin
from minio.credentials import AssumeRoleProvider, StaticProvider
from minio.error import MinioAdminException
from servers.minio import ROOT, MinioServer
from servers.postgres import PostgresServer
from urllib3 import PoolManager

from dapo_core.db import AlertRow, open_reader, open_writer, upgrade
from dapo_core.db.outbox import Outbox
from dapo_core.errors import StoreError
from dapo_core.objectstore.s3 import open_s3
from dapo_core.run.store_rows import RunRow
from dapo_operator.accounts import Accounts, grant_logins, login, make_users, policy, store_user

TEAMS = ("team-a", "team-b")
BUCKET = "dapo"


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("secrets")
    names = [f"{kind}-password.{team}" for kind in ("writer", "minio") for team in TEAMS]
    platform = ("operator", "reader", "acknowledger", "notifier", "minio-reader")
    for name in [*names, *(f"{kind}-password" for kind in platform)]:
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
    open_writer(database).raise_alert(AlertRow("run-of-team-a", "NonFinite", 5.0, 5.0, "m", "Warn"))
    notices = Outbox(postgres.url(name, "dapo_notices", accounts.secret("notifier-password")), "slack")
    notices.fill(9.0)
    [notice] = told = notices.claim(9.0, 99.0, 10)
    notices.failed(told, "it is down", 10.0)
    notices.sent(notices.claim(10.0, 99.0, 10), 11.0)
    assert (notice.run_id, notice.namespace) == ("run-of-team-a", "team-a") and notices.claim(200.0, 300.0, 10) == []


def test_a14_a_namespace_that_leaves_and_a_leaked_password_open_nothing(
    postgres: PostgresServer, minio: MinioServer, secrets: Path, tmp_path: Path
) -> None:
    database = postgres.new_database()
    upgrade(database, with_roles=True)
    now = Accounts(TEAMS, secrets, BUCKET, database=database, root_user=ROOT[0])
    make_users(now, minio.endpoint)
    grant_logins(now, database)
    team, left = TEAMS
    address = urlsplit(minio.endpoint).netloc
    leaked = MinioAdmin(
        endpoint=address,
        credentials=StaticProvider(store_user(team), now.secret(f"minio-password.{team}")),
        secure=False,
        http_client=PoolManager(retries=False, timeout=10.0),
    )
    with pytest.raises(MinioAdminException, match="AccessDenied"):
        leaked.add_service_account(access_key="backdoor", secret_key="backdoor-secret")
    temporary = AssumeRoleProvider(
        sts_endpoint=minio.endpoint,
        access_key=store_user(team),
        secret_key=now.secret(f"minio-password.{team}"),
        http_client=minio.http,
    ).retrieve()
    # A key from before the policy forbade it.
    minio.admin.policy_add(store_user(team), policy=_without_denials(team))
    leaked.add_service_account(access_key="backdoor", secret_key="backdoor-secret")
    for secret in secrets.iterdir():
        (tmp_path / secret.name).write_text(secret.read_text())
    for name in (f"minio-password.{team}", f"writer-password.{team}"):
        (tmp_path / name).write_text("renewed-secret")
    later = Accounts([team], tmp_path, BUCKET, database=database, root_user=ROOT[0])
    make_users(later, minio.endpoint)
    grant_logins(later, database)

    def may_list(user: str, password: str, namespace: str, token: str = "") -> bool:
        environment = {"DAPO_S3_ACCESS_KEY": user, "DAPO_S3_SECRET_KEY": password, "DAPO_S3_SESSION_TOKEN": token}
        with suppress(StoreError):
            list(open_s3(minio.url(BUCKET, namespace), environment).list(""))
            return True
        return False

    assert may_list(store_user(team), "renewed-secret", team)
    assert not may_list(store_user(team), now.secret(f"minio-password.{team}"), team)
    assert not may_list("backdoor", "backdoor-secret", team)
    assert not may_list(temporary.access_key, temporary.secret_key, team, temporary.session_token or "")
    assert not may_list(store_user(left), now.secret(f"minio-password.{left}"), left)
    name = database.rpartition("/")[2]
    assert open_reader(postgres.url(name, login(team), "renewed-secret")).runs() == []
    for gone, password in ((team, "secret-of-writer-password.team-a"), (left, now.secret(f"writer-password.{left}"))):
        with pytest.raises(StoreError, match=r"password authentication failed|permission denied"):
            open_reader(postgres.url(name, login(gone), password)).runs()
    make_users(now, minio.endpoint)


def _without_denials(team: str) -> dict[str, Any]:
    rights = policy(BUCKET, team, write=True)
    return {**rights, "Statement": [each for each in rights["Statement"] if each["Effect"] == "Allow"]}


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
