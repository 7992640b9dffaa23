"""Permissions in a PostgreSQL store, enforced by the database itself.

| role | rights |
|---|---|
| the owner | everything: migrations, the operator, `dapo db` |
| dapo_writer | inserts and updates rows of runs in its namespace; deletes nothing |
| dapo_reader | reads rows of its namespace |
| dapo_acknowledger | as a reader, and acknowledges alerts |

Logins belong to one of these groups, and a row in `access`, which only the owner can read, binds them to one namespace
or to all. Row-level security of each table decides what a login sees, so that neither a forgotten WHERE nor a stolen
password of a trainer exposes another team's runs. SQLite has no roles: whoever can read the file can read all of it.
"""

import hashlib
import random
import secrets
import time
from collections.abc import Sequence
from typing import Final, Literal

from sqlalchemy import Connection, Engine, Table, text
from sqlalchemy.engine import URL
from sqlalchemy.exc import OperationalError, ProgrammingError, SQLAlchemyError

from dapo_core.db import dialects, schema
from dapo_core.errors import DapoError, StoreError

Group = Literal["writer", "reader", "acknowledger"]
GROUPS: Final[dict[Group, str]] = {
    "writer": "dapo_writer",
    "reader": "dapo_reader",
    "acknowledger": "dapo_acknowledger",
}
_WRITER, _READERS = GROUPS["writer"], "dapo_reader, dapo_acknowledger"
_ALL: Final = ", ".join(GROUPS.values())
# Tables that only the owner may use, and tables without rows of runs.
_CLOSED: Final = (schema.access,)
_SHARED: Final = (schema.metric_names,)
# Columns that a writer may update, where not all: a run keeps its name and namespace, and people acknowledge alerts.
_CHANGED: Final = {
    "runs": "config, state, reason, message, started_at, ended_at, tags, total_steps, owner",
    "alerts": "last_seen, cleared_at, message, action",
}


# `runs` last: the policies of all other tables read it.
_LOCK_ORDER: Final = (
    "deliveries",
    "points",
    "latest",
    "attempts",
    "rollups",
    "events",
    "checkpoints",
    "samples",
    "alerts",
    "evaluations",
    "runs",
)
# Less than the server's deadlock_timeout of a second, so that it is never a writer who gives way.
_LOCK_MS: Final = 500
_LOCKED: Final = ("55P03", "40P01")  # lock_timeout, a deadlock
_TRIES: Final = 60
_PAUSE_SECONDS: Final = 0.25

_COMMENT: Final = text("SELECT obj_description('dapo_scope()'::regprocedure, 'pg_proc')")
_IN_FORCE: Final = text(
    "SELECT md5(string_agg(line, ' ' ORDER BY line)) FROM ("
    "SELECT concat_ws(' ', tablename, policyname, cmd, roles, qual, with_check) AS line FROM pg_policies "
    "WHERE schemaname = current_schema() UNION ALL "
    "SELECT concat_ws(' ', relname, relrowsecurity, relacl) FROM pg_class "
    "WHERE relnamespace = current_schema()::regnamespace AND relkind IN ('r', 'S') UNION ALL "
    "SELECT concat_ws(' ', attrelid::regclass, attname, attacl) FROM pg_attribute "
    "JOIN pg_class ON pg_class.oid = attrelid "
    "WHERE relnamespace = current_schema()::regnamespace AND attacl IS NOT NULL UNION ALL "
    "SELECT concat_ws(' ', prosrc, proacl, proconfig) FROM pg_proc WHERE oid = 'dapo_scope()'::regprocedure UNION ALL "
    "SELECT concat_ws(' ', nspname, nspacl) FROM pg_namespace WHERE nspname = current_schema() UNION ALL "
    "SELECT concat_ws(' ', datacl) FROM pg_database WHERE datname = current_database() UNION ALL "
    f"SELECT rolname FROM pg_roles WHERE rolname IN ({', '.join(repr(name) for name in GROUPS.values())})) lines"
)


class LoginError(DapoError):
    """A login that cannot be created or removed."""

    user_mistake = True


def are_set_up(connection: Connection) -> bool:
    """Whether this database has the roles' policies, which every upgrade then renews."""
    return connection.execute(text("SELECT to_regproc('dapo_scope')")).scalar() is not None


def set_up(connection: Connection) -> None:
    """Creates or renews groups, rights and policies; changes and locks nothing if they are as this version has them.

    Raises SQLAlchemyError, for example without CREATEROLE.
    """
    if are_set_up(connection) and connection.execute(_COMMENT).scalar() == _fingerprint(connection):
        return
    for tries_left in reversed(range(_TRIES)):
        try:
            with connection.begin_nested():
                _lock_tables(connection)
                for statement in _statements():
                    connection.execute(text(statement))
                connection.exec_driver_sql(f"COMMENT ON FUNCTION dapo_scope() IS '{_fingerprint(connection)}'")
            return
        except OperationalError as error:
            if not tries_left or getattr(error.orig, "sqlstate", None) not in _LOCKED:
                raise
            time.sleep(_PAUSE_SECONDS * (1 + random.random()))


def _lock_tables(connection: Connection) -> None:
    """Locks all tables before any is changed, in the order in which writers use them: nobody holds one that we wait
    for and waits for one that we hold. A short timeout: who comes after us waits as well."""
    connection.execute(text(f"SET LOCAL lock_timeout = {_LOCK_MS}"))
    names = sorted((table.name for table in _bound_tables()), key=_LOCK_ORDER.index)
    connection.execute(text(f"LOCK TABLE {', '.join(names)} IN ACCESS EXCLUSIVE MODE"))
    connection.execute(text(f"SET LOCAL lock_timeout = {dialects.BUSY_TIMEOUT_MS}"))


def _fingerprint(connection: Connection) -> str:
    """Of this version's statements, and of the rights and policies that the database has now."""
    ours = hashlib.sha256("\n".join(_statements()).encode()).hexdigest()
    return f"dapo {ours[:32]} {connection.execute(_IN_FORCE).scalar_one()}"


def grant(url: str, login: str, group: Group, namespace: str | None, password: str | None = None) -> URL | None:
    """Binds a login to a group and to a namespace (None: all), and creates it if it does not exist.

    Returns a new login's URL with its password; None for an existing one, which keeps its own. Raises LoginError.
    """
    engine = _owner_engine(url)
    try:
        with engine.begin() as connection:
            if not are_set_up(connection):
                raise LoginError("This database has no roles yet: run `dapo db upgrade --roles` first.")
            is_new = _ensure_login(connection, login, secret := password or secrets.token_urlsafe(24))
            for other in GROUPS.values():
                connection.execute(text(f"REVOKE {other} FROM {_quoted(login)}"))
            connection.execute(text(f"GRANT {GROUPS[group]} TO {_quoted(login)}"))
            connection.execute(schema.access.delete().where(schema.access.c.role == login))
            connection.execute(schema.access.insert().values(role=login, namespace=namespace))
        return engine.url.set(username=login, password=secret) if is_new else None
    except SQLAlchemyError as error:
        raise dialects.translate(error, f"a change of the login {login}") from error
    finally:
        engine.dispose()


def revoke(url: str, login: str) -> int:
    """Revokes a login's rights in this database and ends its connections; returns how many could not be ended.

    Those have no rights left either. Raises LoginError.
    """
    engine = _owner_engine(url)
    try:
        with engine.begin() as connection:
            removed = connection.execute(schema.access.delete().where(schema.access.c.role == login)).rowcount
            if not removed:
                raise LoginError(f"There is no login {login!r} in this database: see `dapo db logins`.")
            for group in GROUPS.values():
                connection.execute(text(f"REVOKE {group} FROM {_quoted(login)}"))
        return _end_connections(engine, login)
    except SQLAlchemyError as error:
        raise dialects.translate(error, f"a change of the login {login}") from error
    finally:
        engine.dispose()


def _end_connections(engine: Engine, login: str) -> int:
    """Ends the login's connections to this database. Returns how many there were if the server does not permit it."""
    here = "FROM pg_stat_activity WHERE usename = :login AND datname = current_database()"
    try:
        with engine.begin() as connection:
            # Only members of a role may end its connections, and an owner without superuser rights is none of those
            # that it created.
            is_member = "SELECT pg_has_role(current_user, :login, 'USAGE')"
            join = not connection.execute(text(is_member), {"login": login}).scalar_one()
            if join:
                connection.execute(text(f"GRANT {_quoted(login)} TO CURRENT_USER"))
            connection.execute(text(f"SELECT pg_terminate_backend(pid) {here}"), {"login": login})
            if join:
                connection.execute(text(f"REVOKE {_quoted(login)} FROM CURRENT_USER"))
            return 0
    except ProgrammingError:  # no permission
        with engine.connect() as connection:
            return int(connection.execute(text(f"SELECT count(*) {here}"), {"login": login}).scalar_one())


def logins(url: str) -> list[tuple[str, str, str | None]]:
    """(login, group, namespace) of each login, by name; namespace None: all."""
    engine = _owner_engine(url)
    query = (
        "SELECT access.role, coalesce(groups.rolname, ''), access.namespace FROM access "
        "LEFT JOIN pg_roles members ON members.rolname = access.role "
        "LEFT JOIN pg_auth_members links ON links.member = members.oid "
        "LEFT JOIN pg_roles groups ON groups.oid = links.roleid AND groups.rolname LIKE 'dapo\\_%' ORDER BY 1"
    )
    try:
        with engine.connect() as connection:
            return [(login, group, namespace) for login, group, namespace in connection.execute(text(query))]
    except SQLAlchemyError as error:
        raise dialects.translate(error, "a query") from error
    finally:
        engine.dispose()


def _owner_engine(url: str) -> Engine:
    engine = dialects.open_engine(url)
    if engine.dialect.name != "postgresql":
        raise LoginError("Only a PostgreSQL store has logins; for a SQLite file, use file permissions.")
    return engine


def _ensure_login(connection: Connection, login: str, password: str) -> bool:
    """Returns whether the login was created. The server gets only a verifier of the password."""
    known = connection.execute(text("SELECT 1 FROM pg_roles WHERE rolname = :login"), {"login": login}).scalar()
    if known:
        return False
    raw = connection.connection.driver_connection
    if raw is None:
        raise StoreError("The connection to the metadata database was lost.")
    verifier = raw.pgconn.encrypt_password(password.encode(), login.encode(), b"scram-sha-256").decode()
    connection.exec_driver_sql(f"CREATE ROLE {_quoted(login)} LOGIN PASSWORD '{verifier}'")
    return True


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _statements() -> list[str]:
    statements = [_create_group(group) for group in GROUPS.values()]
    statements += [
        # The login, not the current role, so that SET ROLE makes no difference. In PL/pgSQL, which caches the query's
        # plan: it runs several times per statement. Parallel safe, because long curves are read by several workers.
        "CREATE OR REPLACE FUNCTION dapo_scope() RETURNS text LANGUAGE plpgsql STABLE PARALLEL SAFE SECURITY DEFINER "
        "SET search_path FROM CURRENT AS $$ BEGIN "
        "RETURN (SELECT coalesce(namespace, '*') FROM access WHERE role = session_user); END $$",
        "REVOKE ALL ON FUNCTION dapo_scope() FROM PUBLIC",
        f"GRANT EXECUTE ON FUNCTION dapo_scope() TO {_ALL}",
        "DO $$ BEGIN EXECUTE format('REVOKE ALL ON DATABASE %I FROM PUBLIC', current_database()); "
        f"EXECUTE format('GRANT CONNECT ON DATABASE %I TO {_ALL}', current_database()); "
        f"EXECUTE format('GRANT USAGE ON SCHEMA %I TO {_ALL}', current_schema()); END $$",
        f"GRANT SELECT ON alembic_version TO {_ALL}",
        f"GRANT SELECT ON metric_names TO {_ALL}",
        f"GRANT INSERT ON metric_names TO {_WRITER}",
        f"GRANT USAGE ON SEQUENCE metric_names_metric_id_seq TO {_WRITER}",
    ]
    for table in _bound_tables():
        statements += _rights(table) + _policies(table)
    return [*statements, f"GRANT UPDATE (acknowledged_by, acknowledged_at) ON alerts TO {GROUPS['acknowledger']}"]


def _create_group(group: str) -> str:
    # Groups belong to the server, not to the database: the upgrade of another database may create them meanwhile.
    return (
        f"DO $$ BEGIN CREATE ROLE {group} NOLOGIN; "
        "EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL; END $$"
    )


def _bound_tables() -> Sequence[Table]:
    return [table for table in schema.metadata.sorted_tables if table not in (*_CLOSED, *_SHARED)]


def _rights(table: Table) -> list[str]:
    changed = f"UPDATE ({_CHANGED[table.name]})" if table.name in _CHANGED else "UPDATE"
    return [
        f"REVOKE ALL ON {table.name} FROM PUBLIC, {_ALL}",
        f"GRANT SELECT ON {table.name} TO {_ALL}",
        f"GRANT INSERT, {changed} ON {table.name} TO {_WRITER}",
    ]


def _policies(table: Table) -> list[str]:
    """The rows that a login may read and write. Subqueries without a reference to the row run once per statement; the
    one on `runs` is itself subject to the policy of `runs`."""
    bound = "namespace = (SELECT dapo_scope())"
    if table.name != "runs":
        bound = f"EXISTS (SELECT 1 FROM runs WHERE runs.run_id = {table.name}.run_id)"
    rows = f"((SELECT dapo_scope()) = '*' OR {bound})"
    policies = [
        ("dapo_write", f"FOR ALL TO {_WRITER} USING {rows} WITH CHECK {rows}"),
        ("dapo_read", f"FOR SELECT TO {_READERS} USING {rows}"),
    ]
    if table.name == "alerts":
        policies.append(("dapo_acknowledge", f"FOR UPDATE TO {GROUPS['acknowledger']} USING {rows} WITH CHECK {rows}"))
    statements = [f"ALTER TABLE {table.name} ENABLE ROW LEVEL SECURITY"]
    for name, rest in policies:
        statements += [f"DROP POLICY IF EXISTS {name} ON {table.name}", f"CREATE POLICY {name} ON {table.name} {rest}"]
    return statements
