"""Upgrades of the metadata store: the same tables by migration as in the schema, by many at once, never backwards."""

import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from keep_database import FOLDER as KEPT
from keep_database import load
from servers.postgres import PostgresServer
from sqlalchemy import Connection, Table, create_engine, text
from sqlalchemy.dialects import postgresql
from sqlalchemy.schema import CreateTable

from dapo_core.db import (
    Point,
    RejectedError,
    RunRow,
    WriteBatch,
    dialects,
    migrations,
    open_reader,
    open_writer,
    schema,
    upgrade,
)
from dapo_core.errors import StoreError


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database of either kind."""
    if request.param == "postgres":
        server: PostgresServer = request.getfixturevalue("postgres")
        return server.new_database()
    return f"sqlite:///{tmp_path / 'dapo.db'}"


def inspect(url: str, look: str) -> list[tuple[object, ...]]:
    engine = create_engine(url)
    with engine.connect() as connection:
        found = [tuple(row) for row in connection.execute(text(look))]
    engine.dispose()
    return found


def test_migrations_create_the_tables_of_the_schema(url: str) -> None:
    upgrade(url)
    assert differences(url) == []


def differences(url: str) -> list[object]:
    engine = create_engine(url)
    with engine.connect() as connection, warnings.catch_warnings():
        # SQLAlchemy's own reflection of a constraint that is NOT VALID, as PostgreSQL has them here.
        warnings.filterwarnings("ignore", "Can't validate argument 'dialect_options'")
        found: list[object] = compare_metadata(MigrationContext.configure(connection), schema.metadata)
    engine.dispose()
    return found


def test_head_is_the_newest_revision() -> None:
    assert ScriptDirectory.from_config(migrations.config()).get_heads() == [migrations.HEAD]


def test_upgrading_a_current_database_changes_nothing(url: str) -> None:
    upgrade(url)
    open_writer(url).create_run(RunRow("r", "job"))
    upgrade(url)
    assert inspect(url, "SELECT run_id FROM runs") == [("r",)]


def test_many_processes_upgrade_at_once(url: str) -> None:
    program = f"from dapo_core.db import upgrade; upgrade({url!r})"
    started = [subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE) for _ in range(4)]
    ended = [(process.communicate()[1].decode(), process.returncode) for process in started]
    assert ended == [("", 0)] * 4
    assert inspect(url, "SELECT version_num FROM alembic_version") == [(migrations.HEAD,)]


def test_a_failed_upgrade_leaves_nothing_behind(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def lock_and_fail(connection: Connection) -> None:
        connection.execute(text("CREATE TABLE half (x INTEGER)"))
        raise StoreError("killed")

    monkeypatch.setattr(dialects, "lock_for_migration", lock_and_fail)
    with pytest.raises(StoreError, match="killed"):
        upgrade(url)
    tables = (
        "information_schema.tables WHERE table_schema = 'public'" if url.startswith("postgres") else "sqlite_master"
    )
    assert inspect(url, f"SELECT 1 FROM {tables}") == []


def test_a_database_of_a_newer_version_is_refused(url: str) -> None:
    upgrade(url)
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    engine.dispose()
    with pytest.raises(StoreError, match=r"at revision 9999, newer than .*install the version that upgraded it"):
        upgrade(url)


def test_a_folder_that_cannot_be_created_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"The folder .*/file/deeper of the metadata database cannot be created"):
        upgrade(f"sqlite:///{tmp_path}/file/deeper/dapo.db")


def test_a_file_that_is_not_a_database_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "dapo.db").write_text("this is some text and not a database" * 100)
    with pytest.raises(StoreError, match="file is not a database"):
        upgrade(f"sqlite:///{tmp_path}/dapo.db")


KINDS = {"sqlite": "sqlite", "postgresql+psycopg": "postgres"}


@pytest.mark.parametrize("revision", ["0001", "0002", "0003", "0004"])
def test_a_kept_database_of_an_older_revision(revision: str, url: str) -> None:
    load(url, KEPT / f"r{revision}.{KINDS[url.partition(':')[0]]}.sql")
    upgrade(url)
    assert differences(url) == []
    reader, writer = open_reader(url), open_writer(url)
    assert [(run.run_id, run.spec, run.tags) for run in reader.runs()] == [
        (run_id, {"a": [1, None]}, {"seed": "0"}) for run_id in ("r2", "r1")
    ]
    assert [point.attempt for point in reader.curve("r1", "m/2")] == 30 * [1] + 30 * [2]
    assert reader.curve("r1", "m/1")[-1].flag == "nan" and reader.checkpoints("r1")[0].metrics == {"acc": 0.5}
    assert (len(reader.events("r1")), len(reader.samples("r1")), len(reader.attempts("r1"))) == (1, 1, 2)
    before = reader.buckets(["r1"], ["m/1"], buckets=4)
    writer.write("r1", WriteBatch(points=[Point.of(f"m/{metric}", 61, 2, 99.0, 1.0) for metric in (1, 2, 3)]))
    after = reader.buckets(["r1"], ["m/1"], buckets=4, to_step=60)
    assert after == before and sum(bucket.count for bucket in after["r1", "m/1"]) == 60
    assert inspect(url, "SELECT max(rolled_to) FROM latest") == [(48,)]


def test_every_older_revision_is_kept() -> None:
    revisions = {script.revision for script in ScriptDirectory.from_config(migrations.config()).walk_revisions()}
    kept = {path.name.split(".")[0].removeprefix("r") for path in KEPT.glob("*.sql")}
    assert revisions - kept <= {migrations.HEAD}, "python tests/keep_database.py REVISION"


def test_concurrent_writes_wait_for_the_upgrade(postgres: PostgresServer) -> None:
    url = postgres.new_database()
    load(url, KEPT / "r0001.postgres.sql")
    with pytest.raises(StoreError, match="run `dapo db upgrade`") as refused:
        open_writer(url).write("r1", WriteBatch(points=[Point.of("m/1", 61, 2, 99.0, 1.0)]))
    assert not isinstance(refused.value, RejectedError)  # a sender keeps them in its spool


@pytest.mark.parametrize("table", schema.metadata.sorted_tables, ids=lambda table: table.name)
def test_tables_and_upserts_compile_for_postgres(table: Table) -> None:
    dialect = postgresql.dialect()  # type: ignore[no-untyped-call]
    assert f"CREATE TABLE {table.name}" in str(CreateTable(table).compile(dialect=dialect))
    statement = dialects.dialect_insert("postgresql", table)
    upsert = statement.on_conflict_do_nothing(index_elements=dialects.key_of(table))
    assert "ON CONFLICT" in str(upsert.compile(dialect=dialect))
