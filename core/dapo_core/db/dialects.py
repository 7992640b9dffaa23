"""The few places where databases differ: connecting, transactions, upserts, and what an error means."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection, Engine, Table, create_engine, event
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DataError, DBAPIError, IntegrityError, StatementError
from sqlalchemy.pool import NullPool

from dapo_core.errors import StoreError

SUPPORTED: Final = ("sqlite",)
# A writer waits this long for another process's transaction; ours are a few milliseconds each.
BUSY_TIMEOUT_MS: Final = 15_000

Insert = sqlite.Insert | postgresql.Insert


class RejectedError(StoreError):
    """The database refuses this row for what it is, and would again: sending it once more is of no use."""


def parse_url(url: str) -> URL:
    """The parsed URL of a database that this program can speak to. Raises StoreError with a remedy."""
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        raise StoreError(f"The metadata URL {url!r} is no database URL; write sqlite:///folder/dapo.db.") from error
    if parsed.get_backend_name() not in SUPPORTED:
        raise StoreError(
            f"The metadata URL {parsed.render_as_string()!r} is of the kind {parsed.get_backend_name()}, which this "
            "version can not open; write sqlite:///folder/dapo.db."
        )
    return parsed


def open_engine(url: str, *, read_only: bool = False) -> Engine:
    """An engine that connects at its first use. Raises StoreError for a URL that can not be used."""
    parsed = parse_url(url)
    if read_only and not Path(parsed.database or "").is_file():
        raise StoreError(f"There is no metadata database at {parsed.database}.")
    # A connection a transaction: nothing is shared over a fork, and opening a file costs less than 1 ms.
    engine = create_engine(parsed, poolclass=NullPool, connect_args={"timeout": BUSY_TIMEOUT_MS / 1000})
    _set_up_sqlite(engine, read_only)
    return engine


def _set_up_sqlite(engine: Engine, read_only: bool) -> None:
    @event.listens_for(engine, "connect")
    def _connect(connection: Any, _record: Any) -> None:
        # The driver would begin transactions by itself, late and never for DDL: it is left to `_begin`.
        connection.isolation_level = None
        cursor = connection.cursor()
        cursor.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")
        if read_only:
            cursor.execute("PRAGMA query_only = ON")
        else:
            cursor.execute("PRAGMA journal_mode = WAL")
            # NORMAL may lose the last commits at a power cut. The sender's cursor would already be past them, so they
            # would be gone; a sync for each of the sender's few commits a second costs nothing that matters.
            cursor.execute("PRAGMA synchronous = FULL")
        cursor.close()

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        # A transaction that reads first and then writes fails at once when another writer came between.
        connection.exec_driver_sql("BEGIN" if read_only else "BEGIN IMMEDIATE")


def insert(connection: Connection, table: Table) -> Insert:
    """An INSERT that knows ON CONFLICT."""
    return dialect_insert(connection.dialect.name, table)


def dialect_insert(dialect: str, table: Table) -> Insert:
    """Same, by the dialect's name."""
    return postgresql.insert(table) if dialect == "postgresql" else sqlite.insert(table)


def lock_for_migration(connection: Connection) -> None:
    """Let one process migrate at a time, until the transaction's end."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql("SELECT pg_advisory_xact_lock(4713151604)")
    # SQLite: BEGIN IMMEDIATE already is that lock.


def translate(error: Exception, doing: str) -> StoreError:
    """A database error as ours: the row's own fault (RejectedError), or one that may pass (StoreError)."""
    original = getattr(error, "orig", None) or error
    text = " ".join(str(original).split()) or type(error).__name__
    if isinstance(error, DataError | IntegrityError):
        return RejectedError(f"The metadata database refused {doing}: {text}.")
    if isinstance(error, StatementError) and not isinstance(error, DBAPIError):
        return RejectedError(f"The metadata database can not take {doing}: {text}.")
    return StoreError(f"The metadata database failed at {doing}: {text}.")


def key_of(table: Table) -> Sequence[str]:
    """Names of the primary key's columns."""
    return [column.name for column in table.primary_key.columns]
