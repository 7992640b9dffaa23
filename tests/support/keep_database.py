"""Keeps a small database of a revision for the upgrade tests: `python tests/support/keep_database.py 0002`.

Run it before a new revision is added, with the revision that was the newest until then. The rows are of the columns
that every revision has, so that each kept file holds the same runs.
"""

import re
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
from alembic import command
from servers.postgres import PASSWORD, PostgresServer, binary, plain

from dapo_core.db import dialects, migrations

FOLDER = Path(__file__).parent / "kept_databases"


def rows() -> Iterator[str]:
    """Two runs, the first with two attempts, as INSERT statements."""
    for number, state in ((1, "Succeeded"), (2, "Running")):
        yield (
            "INSERT INTO runs (run_id, name, namespace, spec, config, state, created_at, started_at, tags, total_steps)"
            f" VALUES ('r{number}', 'job', 'default', '{{\"a\": [1, null]}}', NULL, '{state}', {number}, {number},"
            ' \'{"seed": "0"}\', 60)'
        )
    for attempt, first, last in ((1, 0, 40), (2, 30, 60)):
        yield (
            "INSERT INTO attempts (run_id, attempt, started_at, step_from, step_to, reason, counted)"
            f" VALUES ('r1', {attempt}, {attempt}, {first}, {last}, 'Killed', true)"
        )
        for metric in (1, 2):
            if attempt == 1:
                yield f"INSERT INTO metric_names (metric_id, name) VALUES ({metric}, 'm/{metric}')"
            values = ", ".join(
                f"('r1', {metric}, {step}, {attempt}, {step}, {step * attempt * metric}, NULL)"
                for step in range(first + 1, last)
            )
            columns = "run_id, metric_id, step, attempt, ts, value, flag"
            yield f"INSERT INTO points ({columns}) VALUES {values}, ('r1', {metric}, {last}, {attempt}, 1, NULL, 'nan')"
    for metric in (1, 2):
        columns = "run_id, metric_id, step, attempt, ts, value, flag"
        yield f"INSERT INTO latest ({columns}) VALUES ('r1', {metric}, 60, 2, 1, NULL, 'nan')"
    yield "INSERT INTO events VALUES ('r1', 'e', 1, 'Normal', 'Started', 'It''s on.', 1, NULL)"
    yield (
        "INSERT INTO checkpoints (run_id, step, attempt, state, uri, updated_at, metrics)"
        " VALUES ('r1', 40, 1, 'committed', 's3://b/r1', 1, '{\"acc\": 0.5}')"
    )
    yield "INSERT INTO samples VALUES ('r1', 40, 1, 'r1/samples/x.parquet', 16, 1234, 1)"


def make(url: str, revision: str) -> None:
    """Migrate an empty database to `revision` and fill it."""
    engine = dialects.open_engine(url)
    with engine.begin() as connection:
        config = migrations.config()
        config.attributes["connection"] = connection
        command.upgrade(config, revision)
        for statement in rows():
            connection.exec_driver_sql(statement)
        if engine.dialect.name == "postgresql":
            connection.exec_driver_sql("SELECT setval('metric_names_metric_id_seq', 2)")
    engine.dispose()


def sqlite_dump(revision: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "dapo.db"
        make(f"sqlite:///{path}", revision)
        with sqlite3.connect(path) as connection:
            return "\n".join(connection.iterdump()) + "\n"


def postgres_dump(revision: str) -> str:
    server = PostgresServer(settings={"fsync": "off"}).start()
    try:
        url = server.new_database()
        make(url, revision)
        flags = ["--no-owner", "--no-privileges", "--no-comments", "--rows-per-insert=1000"]
        command = [binary("pg_dump"), *flags, plain(url)]
        text = subprocess.run(command, check=True, capture_output=True, text=True, env={"PGPASSWORD": PASSWORD}).stdout
    finally:
        server.close()
    # Only what a plain connection takes, and nothing of the server that wrote it.
    kept = [line for line in text.splitlines() if not re.match(r"\\|--|SET |SELECT pg_catalog.set_config|$", line)]
    return "\n".join(kept) + "\n"


def load(url: str, dump: Path) -> None:
    """Fill an empty database with a kept one."""
    if url.startswith("sqlite:///"):
        with sqlite3.connect(url.removeprefix("sqlite:///")) as connection:
            connection.executescript(dump.read_text())
        return
    with psycopg.connect(plain(url)) as connection:
        connection.execute(dump.read_bytes())


if __name__ == "__main__":
    for kind, dump in (("sqlite", sqlite_dump), ("postgres", postgres_dump)):
        (FOLDER / f"r{sys.argv[1]}.{kind}.sql").write_text(dump(sys.argv[1]))
