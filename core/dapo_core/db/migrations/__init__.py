"""Migrations of the metadata store, one change a file under `versions`; `upgrade` is their only door."""

from pathlib import Path
from typing import Final

from sqlalchemy import Connection, text
from sqlalchemy.exc import SQLAlchemyError

from dapo_core.db import dialects
from dapo_core.errors import StoreError

FOLDER: Final = Path(__file__).parent
# The newest revision, so that a database that is up to date need not wait for Alembic's import.
HEAD: Final = "0002"


def upgrade(url: str) -> None:
    """Bring the database at `url` to this program's tables, making it if it is not there.

    Safe when several processes do it at once: one works, the others find it done. Raises StoreError when the database
    can not be used, or was upgraded by a newer program.
    """
    location = dialects.parse_url(url)
    if location.database and location.database != ":memory:":
        _make_folder(Path(location.database).parent)
    engine = dialects.open_engine(url)
    try:
        with engine.begin() as connection:
            dialects.lock_for_migration(connection)
            if current_revision(connection) != HEAD:
                _migrate(connection)
    except SQLAlchemyError as error:
        raise dialects.translate(error, f"the upgrade of {location.render_as_string()}") from error
    finally:
        engine.dispose()


def current_revision(connection: Connection) -> str | None:
    """The revision a database is at; None before its first upgrade."""
    if not connection.dialect.has_table(connection, "alembic_version"):
        return None
    return connection.execute(text("SELECT version_num FROM alembic_version")).scalar()


def _migrate(connection: Connection) -> None:
    from alembic import command
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", str(FOLDER).replace("%", "%%"))
    config.attributes["connection"] = connection
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    found = current_revision(connection)
    if found is not None and found not in known:
        raise StoreError(
            f"The metadata database {connection.engine.url.render_as_string()} is at revision {found}, newer than this "
            f"program's {HEAD}: install the version of dapo that upgraded it, or name another database."
        )
    command.upgrade(config, HEAD)


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"The folder {folder} of the metadata database can not be made: {error.strerror}.") from error
