"""Migrations of the metadata store, one change per file under `versions`. Only `upgrade` runs them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import SQLAlchemyError

from dapo_core.db import dialects, roles
from dapo_core.errors import StoreError

FOLDER: Final = Path(__file__).parent
# The newest revision, repeated here so that a current database does not need to import Alembic.
HEAD: Final = "0007"


@dataclass(frozen=True)
class SchemaState:
    """A database: its URL, server and revision (None: no tables yet), and the revision that this version needs."""

    url: str
    server: str
    revision: str | None
    program: str
    size_bytes: int

    @property
    def is_current(self) -> bool:
        return self.revision == self.program


def upgrade(url: str, *, with_roles: bool = False) -> None:
    """Migrates the database at `url` to this version's tables; creates it if it does not exist.

    Several processes may call it at once: one migrates, the others wait for it. `with_roles` sets up the roles of a
    PostgreSQL store (`dapo_core.db.roles`), which later upgrades then renew. Raises StoreError for a database that
    cannot be used or was upgraded by a newer version.
    """
    location = dialects.parse_url(url)
    is_file = location.get_backend_name() == "sqlite"
    if is_file and location.database and location.database != ":memory:":
        _make_folder(Path(location.database).parent)
    if is_file and with_roles:
        raise StoreError("Only a PostgreSQL store has roles; for a SQLite file, use file permissions.")
    engine = dialects.open_engine(url)
    try:
        with engine.begin() as connection:
            if not with_roles and current_revision(connection) == HEAD:
                return
            dialects.lock_for_migration(connection)
            if current_revision(connection) != HEAD:
                _migrate(connection)
            if with_roles or (dialects.is_postgres(connection) and roles.are_set_up(connection)):
                roles.set_up(connection)
    except SQLAlchemyError as error:
        raise dialects.translate(error, f"the upgrade of {location.render_as_string()}") from error
    finally:
        engine.dispose()


def check(url: str) -> SchemaState:
    """The state of the database at `url`. Raises StoreError if it cannot be read or was upgraded by a newer version."""
    engine = dialects.open_engine(url, read_only=True)
    try:
        with engine.connect() as connection:
            revision = current_revision(connection)
            if revision is not None and revision not in _known(config()):
                raise _newer(connection, revision)
            return SchemaState(
                engine.url.render_as_string(), _server(engine), revision, HEAD, dialects.size(connection)
            )
    except SQLAlchemyError as error:
        raise dialects.translate(error, "the check") from error
    finally:
        engine.dispose()


def current_revision(connection: Connection) -> str | None:
    """The revision of a database; None before its first upgrade."""
    if not connection.dialect.has_table(connection, "alembic_version"):
        return None
    return connection.execute(text("SELECT version_num FROM alembic_version")).scalar()


def _migrate(connection: Connection) -> None:
    from alembic import command

    ours = config()
    ours.attributes["connection"] = connection
    revision = current_revision(connection)
    if revision is not None and revision not in _known(ours):
        raise _newer(connection, revision)
    command.upgrade(ours, HEAD)


def config() -> Any:
    """Alembic's configuration for the revisions of this version."""
    from alembic.config import Config

    alembic = Config()
    alembic.set_main_option("script_location", str(FOLDER).replace("%", "%%"))
    return alembic


def _known(ours: Any) -> set[str]:
    from alembic.script import ScriptDirectory

    return {script.revision for script in ScriptDirectory.from_config(ours).walk_revisions()}


def _newer(connection: Connection, revision: str) -> StoreError:
    return StoreError(
        f"The metadata database {connection.engine.url.render_as_string()} is at revision {revision}, newer than "
        f"{HEAD}, which this version of dapo needs: install the version that upgraded it, or use another database."
    )


def _server(engine: Engine) -> str:
    version = engine.dialect.server_version_info or ()
    return f"{engine.dialect.name} {'.'.join(str(part) for part in version)}"


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(
            f"The folder {folder} of the metadata database cannot be created: {error.strerror}."
        ) from error
