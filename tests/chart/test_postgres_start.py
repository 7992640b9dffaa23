"""The start of the chart's Postgres: passwords follow the Secret, also those of a database that exists."""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import psycopg
import pytest
from chart_rendering import CHART
from patience import patient
from servers import postgres
from servers.ports import free_port

_LOCKS = [
    f"pg_{verb}advisory_{transaction}lock{shared}({key})"
    for verb in ("", "try_")
    for transaction in ("", "xact_")
    for shared in ("", "_shared")
    for key in ("i::bigint", "i, i")
]


@pytest.mark.server
def test_a16_b19_passwords_follow_the_secret_after_a_crash() -> None:
    # Postgres does not run as root, and pytest's own folders are its user's alone.
    folder, port, user = Path(tempfile.mkdtemp(prefix="dapo-postgres-")), free_port(), postgres._user()
    configuration = folder / "postgresql.conf"
    configuration.write_text(f"port = {port}\nunix_socket_directories = '{folder}'\nlisten_addresses = '127.0.0.1'\n")
    script = (CHART / "files" / "postgres.sh").read_text().replace("/etc/dapo/postgresql.conf", str(configuration))
    data = folder / "volume"
    data.mkdir()
    if user is not None:
        for path in (folder, data):
            os.chown(path, user, -1)
    for password in ("first", "second"):
        environment = {
            "PATH": f"{Path(postgres.binary('postgres')).parent}:{os.environ['PATH']}",
            "PGDATA": str(data / "pgdata"),
            "POSTGRES_PASSWORD": f"super-{password}",
            "OWNER_PASSWORD": password,
        }
        server = subprocess.Popen(
            ["bash", "-c", script], env=environment, user=user, cwd=folder, start_new_session=True
        )
        try:
            _connect(port, "dapo_owner", password, "dapo")
            _connect(port, "postgres", f"super-{password}", "postgres")
            _forbids_what_no_policy_covers(port, password)
        finally:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()
    shutil.rmtree(folder)


def _forbids_what_no_policy_covers(port: int, password: str) -> None:
    """A16: other databases and large objects, by which any login could fill the disk, and advisory locks."""
    owner = {"host": "127.0.0.1", "port": port, "user": "dapo_owner", "password": password}
    for database in ("postgres", "template1"):
        with pytest.raises(psycopg.OperationalError, match="permission denied for database"):
            psycopg.connect(dbname=database, **owner)  # type: ignore[arg-type]
    with (
        psycopg.connect(dbname="dapo", **owner) as connection,  # type: ignore[arg-type]
        pytest.raises(psycopg.errors.InsufficientPrivilege),
    ):
        connection.execute("SELECT lo_create(0)")
    with psycopg.connect(dbname="dapo", **owner, autocommit=True) as connection:  # type: ignore[arg-type]
        connection.execute("SELECT pg_advisory_xact_lock(1)")  # the first migration takes one
        connection.execute("DROP ROLE IF EXISTS team")
        connection.execute("CREATE ROLE team LOGIN PASSWORD 'team'")
    with psycopg.connect(**owner | {"user": "team", "password": "team"}, dbname="dapo", autocommit=True) as connection:  # type: ignore[arg-type]
        for function in _LOCKS:
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(f"SELECT count({function}) FROM generate_series(1, 1000000) i".encode())


def _connect(port: int, user: str, password: str, database: str) -> None:
    end = time.monotonic() + patient(30)
    while True:
        try:
            psycopg.connect(host="127.0.0.1", port=port, user=user, password=password, dbname=database).close()
            return
        except psycopg.OperationalError:
            if time.monotonic() > end:
                raise
            time.sleep(0.1)
