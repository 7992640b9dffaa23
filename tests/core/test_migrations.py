"""Upgrades of the metadata store: the same tables by migration as in the schema, by many at once, never backwards."""

import subprocess
import sys
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Table, create_engine, text
from sqlalchemy.dialects import postgresql
from sqlalchemy.schema import CreateTable

from dapo_core.db import dialects, migrations, open_writer, schema, upgrade
from dapo_core.db.rows import RunRow
from dapo_core.errors import StoreError


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'dapo.db'}"


def inspect(url: str, look: str) -> list[tuple[object, ...]]:
    engine = create_engine(url)
    with engine.connect() as connection:
        found = [tuple(row) for row in connection.execute(text(look))]
    engine.dispose()
    return found


def test_migrations_make_the_tables_of_the_schema(url: str) -> None:
    upgrade(url)
    engine = create_engine(url)
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), schema.metadata) == []
    engine.dispose()


def test_the_newest_revision_is_the_one_that_is_looked_for() -> None:
    config = Config()
    config.set_main_option("script_location", str(migrations.FOLDER))
    assert ScriptDirectory.from_config(config).get_heads() == [migrations.HEAD]


def test_an_upgrade_of_what_is_up_to_date_changes_nothing(url: str) -> None:
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
    assert inspect(url, "SELECT name FROM sqlite_master") == []


def test_a_database_of_a_newer_program_is_refused(url: str) -> None:
    upgrade(url)
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    engine.dispose()
    with pytest.raises(StoreError, match=r"at revision 9999, newer than this program's .*install the version of dapo"):
        upgrade(url)


def test_a_folder_that_can_not_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"The folder .*/file/deeper of the metadata database can not be made"):
        upgrade(f"sqlite:///{tmp_path}/file/deeper/dapo.db")


def test_a_file_that_is_no_database_is_told(tmp_path: Path) -> None:
    (tmp_path / "dapo.db").write_text("this is some text and not a database" * 100)
    with pytest.raises(StoreError, match="file is not a database"):
        upgrade(f"sqlite:///{tmp_path}/dapo.db")


@pytest.mark.parametrize("table", schema.metadata.sorted_tables, ids=lambda table: table.name)
def test_tables_and_upserts_are_also_postgres(table: Table) -> None:
    dialect = postgresql.dialect()
    assert f"CREATE TABLE {table.name}" in str(CreateTable(table).compile(dialect=dialect))
    statement = dialects.dialect_insert("postgresql", table)
    upsert = statement.on_conflict_do_nothing(index_elements=dialects.key_of(table))
    assert "ON CONFLICT" in str(upsert.compile(dialect=dialect))
