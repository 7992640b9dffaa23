"""Where SQLite and PostgreSQL differ: connections, transactions, upserts, locks and errors."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import NoneType
from typing import Any, Final

from sqlalchemy import Connection, Engine, String, Table, bindparam, cast, create_engine, event, func, select, text
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DataError, DBAPIError, IntegrityError, SQLAlchemyError, StatementError
from sqlalchemy.pool import NullPool
from sqlalchemy.types import Text

from dapo_core.errors import StoreError

# How long a writer waits for another process's transaction; ours take a few milliseconds.
BUSY_TIMEOUT_MS: Final = 15_000
# After how long a silent server counts as lost; the kernel's default is a quarter of an hour.
SILENCE_MS: Final = 20_000
CONNECT_SECONDS: Final = 10
# Nobody waits longer for a page, and an export reads some curves at a time.
READ_MS: Final = 300_000
MIGRATION_MS: Final = 3_600_000
_REMEDY: Final = "use postgresql://user:password@host:5432/dapo or sqlite:///folder/dapo.db."
_OTHER_VERSION: Final = ("42P01", "42703")  # an unknown table, an unknown column
_MIGRATION_LOCK: Final = 4713151604

# A row lock, which only who may write the run can take; before the run has a row, a lock by its name.
_LOCK_RUN: Final = text("SELECT 1 FROM runs WHERE run_id = :run_id FOR NO KEY UPDATE")
_LOCK_NAME: Final = text("SELECT pg_advisory_xact_lock(hashtextextended(:run_id, 8))")

_VERSION: Final = text("SELECT CAST(pg_current_snapshot() AS text), CAST(pg_last_wal_replay_lsn() AS text)")

Insert = sqlite.Insert | postgresql.Insert


class RejectedError(StoreError):
    """The database rejects this row itself: retrying cannot help."""


class ForeignRunError(RejectedError):
    """The run ID belongs to a run of another namespace: nothing may be recorded under it."""

    def __init__(self, run_id: str, namespace: str) -> None:
        super().__init__(f"The run {run_id} of namespace {namespace} has the ID of another namespace's run.")


class AmbiguousRunError(RejectedError):
    """Runs of several namespaces have this name."""

    user_mistake = True

    def __init__(self, name: str, namespaces: Sequence[str]) -> None:
        super().__init__(
            f"There are runs {name!r} in the namespaces {', '.join(namespaces)}: name one by its ID, see `dapo runs`."
        )


class StoreBehindError(StoreError):
    """The database lacks records that were delivered before, as after a restore from an older backup: all records of
    the spool after number `seq` must be sent again."""

    def __init__(self, seq: int, delivered: int) -> None:
        self.seq = seq
        super().__init__(f"The metadata store has this spool's records only up to {seq} of {delivered} delivered.")


def parse_url(url: str) -> URL:
    """The parsed URL of a supported database. Raises StoreError."""
    try:
        parsed = make_url(url.replace("postgres://", "postgresql://", 1) if url.startswith("postgres://") else url)
    except ArgumentError as error:
        raise StoreError(f"The metadata URL {url!r} is not a database URL; {_REMEDY}") from error
    if parsed.drivername in ("postgresql", "postgresql+psycopg"):
        return parsed.set(drivername="postgresql+psycopg")
    if parsed.get_backend_name() != "sqlite":
        raise StoreError(
            f"The metadata URL {parsed.render_as_string()!r} is for {parsed.drivername}, which is not "
            f"supported; {_REMEDY}"
        )
    return parsed


def shown_url(url: str) -> str:
    """The URL without its password."""
    return parse_url(url).render_as_string()


def open_engine(url: str, *, read_only: bool = False) -> Engine:
    """An engine that connects at its first use. Raises StoreError for an unusable URL."""
    parsed = parse_url(url)
    if parsed.get_backend_name() == "postgresql":
        return _postgres(parsed, read_only)
    if read_only and not Path(parsed.database or "").is_file():
        raise StoreError(f"There is no metadata database at {parsed.database}.")
    # One connection per transaction: nothing is shared across a fork, and opening a file takes less than 1 ms.
    engine = create_engine(
        parsed,
        poolclass=NullPool,
        connect_args={"timeout": BUSY_TIMEOUT_MS / 1000},
        json_deserializer=_parsed_json,
    )
    _set_up_sqlite(engine, read_only)
    return engine


def _postgres(parsed: URL, read_only: bool) -> Engine:
    """Few connections, kept open: a database serves some hundreds, and every trainer of a cluster has one."""
    is_pooled = _is_pooled(parsed)
    # Without JIT: compiling takes longer than any of our queries.
    settings = {
        "jit": "off",
        "lock_timeout": BUSY_TIMEOUT_MS,
        "idle_in_transaction_session_timeout": 600_000,
        "timezone": "UTC",
    }
    if read_only:
        settings |= {"statement_timeout": READ_MS}
    arguments: dict[str, object] = {
        "connect_timeout": CONNECT_SECONDS,
        "keepalives_idle": 10,
        "keepalives_interval": 5,
        "keepalives_count": 2,
        "tcp_user_timeout": SILENCE_MS,
        "application_name": "dapo-reader" if read_only else "dapo-writer",
    }
    if is_pooled:
        # The next transaction may be on another of the pool's connections, without what this one prepared.
        arguments["prepare_threshold"] = None
    else:
        # Of a writer: the same few statements again and again, and planning each takes longer than running it.
        session = {"default_transaction_read_only": "on"} if read_only else {"plan_cache_mode": "force_generic_plan"}
        arguments["options"] = " ".join(f"-c {name}={value}" for name, value in (settings | session).items())
    in_url = parsed.query.keys()
    engine = create_engine(
        parsed,
        connect_args={name: value for name, value in arguments.items() if name not in in_url},
        # Each query of a reader sees what is committed when it starts, with or without a transaction around it.
        isolation_level="AUTOCOMMIT" if read_only and not is_pooled else None,
        # Otherwise each new connection queries a type that is not used here.
        use_native_hstore=False,
        json_deserializer=_parsed_json,
        # A connection that a restart broke is detected before use, and replaced.
        pool_pre_ping=True,
        pool_size=4 if read_only else 1,
        max_overflow=6 if read_only else 2,
        pool_recycle=1800,
        pool_timeout=BUSY_TIMEOUT_MS / 1000,
    )
    if is_pooled:
        _set_in_transactions(engine, settings, read_only)
    if read_only:
        _read_in_binary(engine)
    return engine


def _is_pooled(parsed: URL) -> bool:
    """Whether a pooler in transaction mode stands before the server, by the URL."""
    pooler = parsed.query.get("pooler")
    if pooler not in (None, "transaction"):
        raise StoreError(f"The metadata URL has pooler={pooler}: it must be pooler=transaction, or be left out.")
    return pooler is not None


def _set_in_transactions(engine: Engine, settings: Mapping[str, object], read_only: bool) -> None:
    """Settings for each transaction: poolers refuse those of a connection, or give them to others."""
    statements = [f"SET LOCAL {name} = '{value}'" for name, value in settings.items()]
    if read_only:
        statements.insert(0, "SET TRANSACTION READ ONLY")
    script = "; ".join(statements)

    @event.listens_for(engine, "do_connect")
    def _connect(_dialect: Any, _record: Any, _arguments: Any, parameters: dict[str, Any]) -> None:
        parameters.pop("pooler", None)  # not one of libpq

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        if connection.get_isolation_level() != "AUTOCOMMIT":
            raw: Any = connection.connection.driver_connection
            raw.execute(script)


def _read_in_binary(engine: Engine) -> None:
    """Results in binary format: as text, rows of numbers take three times as long."""
    # The engine has imported it by now; without PostgreSQL it is not needed.
    from psycopg.pq import Format

    @event.listens_for(engine, "before_cursor_execute")
    def _ask(_connection: Connection, cursor: Any, *_statement: Any) -> None:
        cursor.format = Format.BINARY


def _set_up_sqlite(engine: Engine, read_only: bool) -> None:
    @event.listens_for(engine, "connect")
    def _connect(connection: Any, _record: Any) -> None:
        # The driver would begin transactions itself, late and never for DDL; `_begin` does it.
        connection.isolation_level = None
        cursor = connection.cursor()
        cursor.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")
        if read_only:
            cursor.execute("PRAGMA query_only = ON")
        else:
            cursor.execute("PRAGMA journal_mode = WAL")
            # NORMAL may lose the last commits at a power cut, and the sender's cursor would already be past them. A
            # sync for each of the sender's few commits per second costs next to nothing.
            cursor.execute("PRAGMA synchronous = FULL")
        cursor.close()

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        # A deferred transaction that reads before it writes fails if another writer came in between.
        connection.exec_driver_sql("BEGIN" if read_only else "BEGIN IMMEDIATE")


def _parsed_json(text: str | bytes) -> Any:
    """A column's JSON; an empty mapping for one that is nested too deeply: one row must not hide all others."""
    try:
        return json.loads(text)
    except RecursionError:
        return {}


def is_postgres(connection: Connection) -> bool:
    return connection.dialect.name == "postgresql"


def insert(connection: Connection, table: Table) -> Insert:
    """An INSERT with ON CONFLICT."""
    return dialect_insert(connection.dialect.name, table)


def dialect_insert(dialect: str, table: Table) -> Insert:
    """The same, by the dialect's name."""
    return postgresql.insert(table) if dialect == "postgresql" else sqlite.insert(table)


def insert_rows(dialect: str, table: Table, names: Sequence[str]) -> Insert:
    """An INSERT of rows with these columns, executed with the `parameters` of the rows.

    PostgreSQL gets each column as one array: parsing thousands of parameters would cost more than the rows.
    """
    if dialect != "postgresql":
        return sqlite.insert(table)
    arrays = [cast(bindparam(name, type_=Text), postgresql.ARRAY(_element(table, name))) for name in names]
    rows = func.unnest(*arrays).table_valued(*names, name="given").render_derived()
    return postgresql.insert(table).from_select(list(names), select(*(rows.c[name] for name in names)))


def parameters(dialect: str, names: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> Any:
    """The parameters of an `insert_rows` statement: the rows by name, or one array per column."""
    if dialect != "postgresql":
        return [dict(zip(names, row, strict=True)) for row in rows]
    return {name: _array(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)}


def _element(table: Table, name: str) -> Any:
    # A cast to varchar(n) silently truncates; inserting text that is too long fails.
    kind = table.c[name].type
    return Text() if isinstance(kind, String) else kind


def _array(values: Sequence[Any]) -> str:
    """An array literal of PostgreSQL. The driver would examine each number for quotation marks."""
    kinds = set(map(type, values))
    if kinds <= {int, float}:
        return "{" + ",".join(map(repr, values)) + "}"
    if kinds <= {str, NoneType}:  # a run ID or an empty flag, thousands of times
        words = {value: _word(value) for value in set(values)}
        return "{" + ",".join(map(words.__getitem__, values)) + "}"
    return "{" + ",".join(map(_word, values)) + "}"


def _word(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bool | float | int):
        return str(value)
    text = value if isinstance(value, str) else json.dumps(value)
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def is_forbidden(error: BaseException) -> bool:
    """Whether the login lacks the right to do that."""
    return getattr(getattr(error, "orig", None), "sqlstate", None) == "42501"


def greatest(connection: Connection, *values: Any) -> Any:
    """The largest of several values; SQLite calls that max()."""
    return (func.greatest if is_postgres(connection) else func.max)(*values)


def least(connection: Connection, *values: Any) -> Any:
    """The smallest of several values; SQLite calls that min()."""
    return (func.least if is_postgres(connection) else func.min)(*values)


def octets(connection: Connection, value: Any) -> Any:
    """How long a text is: in bytes, which takes no decoding; of SQLite's, which are one's own, in characters."""
    return (func.octet_length if is_postgres(connection) else func.length)(value)


def lock_for_migration(connection: Connection) -> None:
    """Lets only one process migrate until the end of the transaction."""
    if is_postgres(connection):
        # Wait for another process's migration of large tables, but not long for locks of the tables themselves.
        connection.execute(text(f"SET LOCAL lock_timeout = {MIGRATION_MS}"))
        # A lock of a table, where there is one: anybody who can connect could hold an advisory lock.
        has_tables = connection.dialect.has_table(connection, "alembic_version")
        lock = "LOCK TABLE alembic_version IN SHARE ROW EXCLUSIVE MODE"
        connection.execute(text(lock if has_tables else f"SELECT pg_advisory_xact_lock({_MIGRATION_LOCK})"))
        connection.execute(text(f"SET LOCAL lock_timeout = {BUSY_TIMEOUT_MS}"))
    # SQLite: BEGIN IMMEDIATE is that lock.


def probe_writing(connection: Connection) -> None:
    """Writes a row without changing it, where a trainer's tables can be written. Raises SQLAlchemyError, for example
    while the disk is full, the server is read-only or somebody holds a lock of those tables."""
    if is_postgres(connection):
        connection.execute(text("LOCK TABLE curve_points, latest, attempts IN ROW EXCLUSIVE MODE NOWAIT"))
    connection.execute(text("UPDATE alembic_version SET version_num = version_num"))


def lock_run(connection: Connection, run_id: str) -> None:
    """Lets only one transaction at a time write a run's curves, so that each sees what the previous one wrote."""
    if is_postgres(connection) and connection.execute(_LOCK_RUN, {"run_id": run_id}).first() is None:
        connection.execute(_LOCK_NAME, {"run_id": run_id})


def estimated_rows(connection: Connection, *tables: Table) -> int | None:
    """About how many rows tables have together, by the server's statistics; None where they are not known."""
    if not is_postgres(connection):
        return None
    query = text("SELECT reltuples FROM pg_class WHERE oid = CAST(:name AS regclass)")
    # -1 of a table that was never analyzed.
    rows = [int(connection.execute(query, {"name": table.name}).scalar_one()) for table in tables]
    return sum(max(0, number) for number in rows) or None


def version(engine: Engine) -> object:
    """Another value after every commit: which transactions a query sees, on a standby how far it has got; of SQLite,
    whose readers keep no connection, when its files were written. It takes no time, however large the database is."""
    if engine.dialect.name == "postgresql":
        with engine.connect() as connection:
            return tuple(connection.execute(_VERSION).one())
    path = Path(engine.url.database or "")
    return tuple(_written(each) for each in (path, path.with_name(f"{path.name}-wal")))


def _written(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    # Each reader that comes alone makes an empty log, and removes it.
    return (found.st_ino, found.st_mtime_ns, found.st_size) if found.st_size else None


def size(connection: Connection) -> int:
    """Bytes of the whole database on disk."""
    if is_postgres(connection):
        return int(connection.execute(text("SELECT pg_database_size(current_database())")).scalar_one())
    pages = [connection.exec_driver_sql(f"PRAGMA {name}").scalar_one() for name in ("page_count", "page_size")]
    return int(pages[0]) * int(pages[1])


def translate(error: Exception, doing: str) -> StoreError:
    """A database error as RejectedError, if the row is at fault, else as StoreError. `doing`: such as "a query"."""
    original = getattr(error, "orig", None) or error
    words = " ".join(str(original).split()).rstrip(".") or type(error).__name__
    if isinstance(error, DataError | IntegrityError):
        return RejectedError(f"The metadata database rejected {doing}: {words}.")
    if isinstance(error, StatementError) and not isinstance(error, DBAPIError):
        return RejectedError(f"The metadata database rejected {doing}: {words}.")
    if getattr(original, "sqlstate", None) in _OTHER_VERSION or "no such table" in words or "no such column" in words:
        return StoreError(f"The metadata database has another revision ({words}): run `dapo db upgrade`.")
    if "startup parameter" in words or "command-line options" in words:
        words += "; a pooler stands before the database: add pooler=transaction to the parameters of its URL"
    return StoreError(f"Metadata database error during {doing}: {words}.")


@contextmanager
def transaction(engine: Engine, doing: str) -> Iterator[Connection]:
    """A transaction; errors of the database are raised as `translate` says."""
    try:
        with engine.begin() as connection:
            yield connection
    except SQLAlchemyError as error:
        raise translate(error, doing) from error


def key_of(table: Table) -> Sequence[str]:
    """Names of the primary key's columns."""
    return [column.name for column in table.primary_key.columns]
