"""Backups of the record as docs/stores.md tells to make them, put back, and what came after them delivered again."""

import gc
import shutil
import sqlite3
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from servers.postgres import PostgresServer, binary, plain
from store_training import PATIENCE, RUN, Training, assert_each_point_once, wait_until

from dapo_core.db import RunRow, open_reader, open_writer, roles, upgrade
from dapo_trainer.spool import drain

# A connection that breaks while SQLAlchemy opens it is left to the garbage collector, which says so.
pytestmark = [pytest.mark.server, pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")]


@pytest.fixture
def archive() -> Iterator[Path]:
    """A folder that the server's user may write to."""
    folder = Path(tempfile.mkdtemp(prefix="dapo-archive-"))
    folder.chmod(0o777)
    yield folder
    shutil.rmtree(folder)


def tool(name: str, *arguments: str) -> None:
    done = subprocess.run([binary(name), *arguments], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def tell(server: PostgresServer, statement: str, database: str = "postgres") -> tuple[Any, ...]:
    with psycopg.connect(plain(server.url(database)), autocommit=True) as admin:
        found = admin.execute(statement.encode())
        return (found.fetchone() or ()) if found.description else ()


def test_a_moment_before_a_mistake(archive: Path, tmp_path: Path) -> None:
    settings = {"fsync": "off", "archive_mode": "on", "archive_command": f"cp %p {archive}/%f"}
    server = PostgresServer(settings=settings).start()
    try:
        training = Training(tmp_path / "spool", server.new_database(upgraded=True))
        training.until_delivered(20)
        tool("pg_basebackup", f"--dbname={plain(server.url('postgres'))}", f"--pgdata={tmp_path}/base", "-c", "fast")
        training.until_delivered(50)
        reached = training.delivered()
        tell(server, "SELECT pg_create_restore_point('before')")
        tell(server, "DELETE FROM curve_points", training.url.rpartition("/")[2])
        training.until_delivered(300)
        assert training.close()
        (last,) = tell(server, "SELECT pg_walfile_name(pg_switch_wal())")
        filed = "SELECT last_archived_wal FROM pg_stat_archiver"
        wait_until(lambda: str(tell(server, filed)[0]) >= str(last), "the log is filed")

        server.kill()
        server.put_back(tmp_path / "base")
        (server.data / "recovery.signal").touch()
        server.settings |= {
            "restore_command": f"cp {archive}/%f %p",
            "recovery_target_name": "before",
            "recovery_target_action": "promote",
            "hot_standby": "off",  # it answers when it is done
        }
        server.start()
        assert reached <= training.delivered() < training.step - 200
        (count,) = tell(server, "SELECT count(*) FROM curve_points", training.url.rpartition("/")[2])
        assert count == 10 * training.delivered(), "the points of before the mistake are back"
        assert drain(training.folder, training.writer, RUN, PATIENCE)  # as the trainer's sender does, or a resume
        assert_each_point_once(training.url, training.folder)
    finally:
        server.close()
        gc.collect()


def test_a_dump_put_into_a_new_server(postgres: PostgresServer, tmp_path: Path) -> None:
    url = postgres.new_database()
    upgrade(url, with_roles=True)
    open_writer(url).create_run(RunRow(RUN, "job", created_at=1.0))
    training = Training(tmp_path / "spool", url)
    training.until_delivered(20)
    tool("pg_dump", "--format=custom", f"--dbname={plain(url)}", f"--file={tmp_path}/dapo.dump")
    training.until_delivered(20)
    assert training.close()

    new = PostgresServer(settings={"fsync": "off"}).start()
    try:
        restored = new.new_database()
        upgrade(restored, with_roles=True)
        tool("pg_restore", "--clean", "--if-exists", f"--dbname={plain(restored)}", f"{tmp_path}/dapo.dump")
        upgrade(restored, with_roles=True)
        login = roles.grant(restored, "trainer", "writer", "default")
        assert login is not None
        with pytest.raises(AssertionError):
            assert_each_point_once(restored, training.folder)
        writer = open_writer(login.render_as_string(hide_password=False))
        assert drain(training.folder, writer, RUN, PATIENCE)
        assert_each_point_once(restored, training.folder)
    finally:
        new.close()
        gc.collect()


def test_a_copy_of_a_file_that_is_written(tmp_path: Path) -> None:
    upgrade(url := f"sqlite:///{tmp_path}/dapo.db")
    writer = open_writer(url)
    writer.create_run(RunRow("one", "job", created_at=1.0))
    with closing(sqlite3.connect(tmp_path / "dapo.db")) as connection:
        connection.execute(f"VACUUM INTO '{tmp_path}/copy.db'")
    writer.create_run(RunRow("two", "job", created_at=2.0))
    assert [run.run_id for run in open_reader(f"sqlite:///{tmp_path}/copy.db").runs()] == ["one"]
