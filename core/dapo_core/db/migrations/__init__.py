"""Migrations of the metadata store, one change a file under `versions`; `upgrade` is their only door."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import SQLAlchemyError

from dapo_core.db import dialects, roles
from dapo_core.errors import StoreError

FOLDER: Final = Path(__file__).parent
# The newest revision, so that a database that is up to date need not wait for Alembic's import.
HEAD: Final = "0003"


@dataclass(frozen=True)
class Check:
    """What `check` found: where the database is, its revision (None: no tables yet), and this program's."""

    url: str
    server: str
    revision: str | None
    program: str
    size_bytes: int

    @property
    def is_current(self) -> bool:
        return self.revision == self.program


def upgrade(url: str, *, with_roles: bool = False) -> None:
    """Bring the database at `url` to this program's tables, making it if it is not there.

    Safe when several processes do it at once: one works, the others find it done. `with_roles` sets up the roles of a
    Postgres store (`dapo_core.db.roles`); once there, every later upgrade renews them. Raises StoreError when the
    database can not be used, or was upgraded by a newer program.
    """
    location = dialects.parse_url(url)
    is_file = location.get_backend_name() == "sqlite"
    if is_file and location.database and location.database != ":memory:":
        _make_folder(Path(location.database).parent)
    if is_file and with_roles:
        raise StoreError("Only a Postgres store has roles; who may read a SQLite file is said by its file mode.")
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


def check(url: str) -> Check:
    """Where the database at `url` is and at which revision. Raises StoreError when it can not be read, or was upgraded
    by a newer program."""
    engine = dialects.open_engine(url, read_only=True)
    try:
        with engine.connect() as connection:
            revision = current_revision(connection)
            if revision is not None and revision not in _known(config()):
                raise _newer(connection, revision)
            return Check(engine.url.render_as_string(), _server(engine), revision, HEAD, dialects.size(connection))
    except SQLAlchemyError as error:
        raise dialects.translate(error, "the check") from error
    finally:
        engine.dispose()


def current_revision(connection: Connection) -> str | None:
    """The revision a database is at; None before its first upgrade."""
    if not connection.dialect.has_table(connection, "alembic_version"):
        return None
    return connection.execute(text("SELECT version_num FROM alembic_version")).scalar()


def _migrate(connection: Connection) -> None:
    from alembic import command

    ours = config()
    ours.attributes["connection"] = connection
    found = current_revision(connection)
    if found is not None and found not in _known(ours):
        raise _newer(connection, found)
    command.upgrade(ours, HEAD)


def config() -> Any:
    """Alembic's, for the revisions of this program."""
    from alembic.config import Config

    made = Config()
    made.set_main_option("script_location", str(FOLDER).replace("%", "%%"))
    return made


def _known(ours: Any) -> set[str]:
    from alembic.script import ScriptDirectory

    return {script.revision for script in ScriptDirectory.from_config(ours).walk_revisions()}


def _newer(connection: Connection, found: str) -> StoreError:
    return StoreError(
        f"The metadata database {connection.engine.url.render_as_string()} is at revision {found}, newer than this "
        f"program's {HEAD}: install the version of dapo that upgraded it, or name another database."
    )


def _server(engine: Engine) -> str:
    version = engine.dialect.server_version_info or ()
    return f"{engine.dialect.name} {'.'.join(str(part) for part in version)}"


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"The folder {folder} of the metadata database can not be made: {error.strerror}.") from error
