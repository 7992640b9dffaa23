"""Permissions in a PostgreSQL store, enforced by the database itself.

| role | rights |
|---|---|
| the owner | everything: migrations, logins, `dapo db` |
| dapo_writer | inserts and updates rows of runs in its namespace; deletes nothing |
| dapo_reader | reads rows of its namespace |
| dapo_acknowledger | as a reader, and records what people say: acknowledgements, notes, tags, stars |
| dapo_operator | inserts and updates rows of runs, for the operator |
| dapo_notifier | reads alerts and the names of their runs, and records what was sent of them |

Logins belong to one of these groups, and a row in `access`, which only the owner can read, binds them to one namespace
or to all. Row-level security of each table decides what a login sees, so that neither a forgotten WHERE nor a stolen
password of a trainer exposes another team's runs. SQLite has no roles: whoever can read the file can read all of it.
"""

import hashlib
import random
import secrets
import time
from typing import Final

from sqlalchemy import Connection, Engine, text
from sqlalchemy.engine import URL
from sqlalchemy.exc import OperationalError, ProgrammingError, SQLAlchemyError

from dapo_core.db import dialects, policies, schema
from dapo_core.db.policies import GROUPS, Group
from dapo_core.errors import DapoError, StoreError

# As a batch is written: its writer locks the row of the run first. So we wait for it while we hold nothing yet.
_LOCK_ORDER: Final = (
    "runs",
    "deliveries",
    "metric_names",
    "run_keys",
    "points",
    "curve_points",
    "latest",
    "attempts",
    "rollups",
    "events",
    "checkpoints",
    "samples",
    "alerts",
    "notices",
    "annotations",
    "evaluations",
)
# Less than the server's deadlock_timeout of a second, so that it is never a writer who gives way.
_LOCK_MS: Final = 500
_LOCKED: Final = ("55P03", "40P01")  # lock_timeout, a deadlock
_TRIES: Final = 60
_PAUSE_SECONDS: Final = 0.25
# Of one login at once: a job's trainer has one to three, a replica of the dashboard up to ten.
CONNECTIONS: Final = 100

_COMMENT: Final = text("SELECT obj_description('dapo_scope()'::regprocedure, 'pg_proc')")
# Rights of all logins, by which one could put a table or a function of its own before the store's.
_EVERYBODY: Final = text(
    "SELECT CASE WHEN has_schema_privilege('public', current_schema(), 'CREATE') THEN 'create tables' "
    "WHEN has_database_privilege('public', current_database(), 'TEMPORARY') THEN 'create temporary tables' END"
)
_IN_FORCE: Final = text(
    "SELECT md5(string_agg(line, ' ' ORDER BY line)) FROM ("
    "SELECT concat_ws(' ', tablename, policyname, cmd, roles, qual, with_check) AS line FROM pg_policies "
    "WHERE schemaname = current_schema() UNION ALL "
    "SELECT concat_ws(' ', relname, relrowsecurity, relacl) FROM pg_class "
    "WHERE relnamespace = current_schema()::regnamespace AND relkind IN ('r', 'S') UNION ALL "
    "SELECT concat_ws(' ', attrelid::regclass, attname, attacl) FROM pg_attribute "
    "JOIN pg_class ON pg_class.oid = attrelid "
    "WHERE relnamespace = current_schema()::regnamespace AND attacl IS NOT NULL UNION ALL "
    "SELECT concat_ws(' ', prosrc, proacl, proconfig) FROM pg_proc "
    "WHERE oid IN (to_regproc('dapo_scope'), to_regproc('dapo_metric_id'), to_regproc('dapo_run_key')) UNION ALL "
    "SELECT pg_get_triggerdef(oid) FROM pg_trigger WHERE tgname IN ('dapo_metric_id', 'dapo_run_key') UNION ALL "
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

    Raises SQLAlchemyError, for example without CREATEROLE, and LoginError if every login can shadow its tables.
    """
    if are_set_up(connection) and connection.execute(_COMMENT).scalar() == _fingerprint(connection):
        return
    _renew(connection)
    if (left := connection.execute(_EVERYBODY).scalar_one()) is not None:
        raise LoginError(
            f"Every login of this server may {left} in this database, and its owner cannot revoke that. Run as an "
            "administrator of the server, in this database: REVOKE CREATE ON SCHEMA public FROM PUBLIC; "
            f"REVOKE TEMPORARY ON DATABASE {connection.engine.url.database} FROM PUBLIC."
        )


def _renew(connection: Connection) -> None:
    for tries_left in reversed(range(_TRIES)):
        try:
            with connection.begin_nested():
                _lock_tables(connection)
                for statement in policies.statements():
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
    names = sorted(("metric_names", *(table.name for table in policies.bound_tables())), key=_LOCK_ORDER.index)
    connection.execute(text(f"LOCK TABLE {', '.join(names)} IN ACCESS EXCLUSIVE MODE"))
    connection.execute(text(f"SET LOCAL lock_timeout = {dialects.BUSY_TIMEOUT_MS}"))


def _fingerprint(connection: Connection) -> str:
    """Of this version's statements, and of the rights and policies that the database has now."""
    ours = hashlib.sha256("\n".join(policies.statements()).encode()).hexdigest()
    return f"dapo {ours[:32]} {connection.execute(_IN_FORCE).scalar_one()}"


def grant(
    url: str, login: str, group: Group, namespace: str | None, password: str | None = None, most: int = CONNECTIONS
) -> URL | None:
    """Binds a login to a group and to a namespace (None: all), and creates it if it does not exist.

    Returns the login's URL with its password if that is new; None for an existing login without `password`, which keeps
    its own. `most`: how many connections it may have at once, so that no login takes all of the server. Raises
    LoginError.
    """
    engine = _owner_engine(url)
    try:
        with engine.begin() as connection:
            if not are_set_up(connection):
                raise LoginError("This database has no roles yet: run `dapo db upgrade --roles` first.")
            known = _is_known(connection, login)
            secret = password or (None if known else secrets.token_urlsafe(24))
            _set_login(connection, "ALTER" if known else "CREATE", login, secret, most)
            for other in GROUPS.values():
                connection.execute(text(f"REVOKE {other} FROM {_quoted(login)}"))
            connection.execute(text(f"GRANT {GROUPS[group]} TO {_quoted(login)}"))
            connection.execute(schema.access.delete().where(schema.access.c.role == login))
            connection.execute(schema.access.insert().values(role=login, namespace=namespace))
        return None if secret is None else engine.url.set(username=login, password=secret)
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


def _is_known(connection: Connection, login: str) -> bool:
    query = text("SELECT 1 FROM pg_roles WHERE rolname = :login")
    return connection.execute(query, {"login": login}).scalar() is not None


def _set_login(connection: Connection, verb: str, login: str, password: str | None, most: int) -> None:
    """CREATE or ALTER the login. The server gets only a verifier of the password; None keeps the old one."""
    raw = connection.connection.driver_connection
    if raw is None:
        raise StoreError("The connection to the metadata database was lost.")
    secret = ""
    if password is not None:
        verifier = raw.pgconn.encrypt_password(password.encode(), login.encode(), b"scram-sha-256").decode()
        secret = f" PASSWORD '{verifier}'"
    connection.exec_driver_sql(f"{verb} ROLE {_quoted(login)} LOGIN CONNECTION LIMIT {most}{secret}")


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
