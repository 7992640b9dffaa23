"""`dapo db`: the store set up, checked, pruned and its logins bound, from the command line."""

import time
from pathlib import Path

import pytest
from servers.postgres import PostgresServer
from sqlalchemy import create_engine, text
from typer.testing import CliRunner, Result

from dapo_core.cli.db import db
from dapo_core.db import Point, RunRow, WriteBatch, open_reader, open_writer
from dapo_core.db.roles import LoginError
from dapo_core.errors import StoreError


def call(url: str, *arguments: str) -> Result:
    result = CliRunner().invoke(db, [*arguments, "--metadata", url])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result


@pytest.fixture
def sqlite(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'dapo.db'}"


def test_upgrade_and_check(sqlite: str) -> None:
    assert "is at revision 0" in call(sqlite, "upgrade").output
    assert "sqlite 3." in call(sqlite, "check").output
    engine = create_engine(sqlite)
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '0001'"))
    engine.dispose()
    with pytest.raises(StoreError, match=r"This version of dapo needs revision 0.*run `dapo db upgrade`"):
        call(sqlite, "check")


def test_the_url_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DAPO_METADATA_URL", raising=False)
    monkeypatch.setenv("DAPO_HOME", str(tmp_path / "home"))
    assert CliRunner().invoke(db, ["upgrade"]).exit_code == 0
    assert (tmp_path / "home" / "dapo.db").is_file()
    monkeypatch.setenv("DAPO_METADATA_URL", f"sqlite:///{tmp_path / 'other.db'}")
    assert "other.db" in CliRunner().invoke(db, ["upgrade"]).output


@pytest.mark.parametrize("command", ["upgrade", "check", "prune"])
def test_home_names_the_database_of_a_folder(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As for `dapo runs`: before DAPO_METADATA_URL, which here names no store at all."""
    monkeypatch.setenv("DAPO_METADATA_URL", "nonsense://")
    home = ["--home", str(tmp_path / "home")]
    assert CliRunner().invoke(db, ["upgrade", *home]).exit_code == 0
    result = CliRunner().invoke(db, [command, *home])
    assert result.exit_code == 0, result.output
    assert (tmp_path / "home" / "dapo.db").is_file()


def test_prune_is_a_dry_run_unless_confirmed(sqlite: str) -> None:
    call(sqlite, "upgrade")
    writer = open_writer(sqlite)
    writer.create_run(RunRow("r", "job", created_at=1.0))
    writer.update_run_state("r", "Failed", ended_at=time.time() - 40 * 86_400)
    writer.write("r", WriteBatch(points=[Point.of("m", step, 1, 1.0, step) for step in range(160)]))
    dry = call(sqlite, "prune", "--thin-after", "30").output
    assert "0 runs to remove and 1 to thin: 150 of 160 points" in dry and "Dry run: nothing was changed." in dry
    assert len(open_reader(sqlite).curve("r", "m")) == 160
    assert "Done." in call(sqlite, "prune", "--thin-after", "30", "--yes").output
    assert len(open_reader(sqlite).curve("r", "m")) == 9 + 16  # the last bucket is not rolled up
    assert "0 runs to remove and 0 to thin" in call(sqlite, "prune", "--remove-after", "50").output


def test_logins(postgres: PostgresServer, tmp_path: Path) -> None:
    url = postgres.new_database()
    name = url.rpartition("/")[2] + "_ada"
    call(url, "upgrade", "--roles")
    made = call(url, "grant", name, "--role", "reader", "--namespace", "team-a")
    assert f"{name}: reader in namespace team-a." in made.stderr
    assert open_reader(made.stdout.strip()).runs() == []
    assert call(url, "grant", name, "--role", "writer").stdout == ""
    assert call(url, "logins").stdout.split() == [name, "writer", "(all)"]
    password = tmp_path / "password"
    password.write_text("from a file\n")
    with_password = call(url, "grant", f"{name}2", "--role", "reader", "--password-file", str(password)).stdout
    assert open_reader(with_password.strip()).runs() == [] and ":from a file@" in with_password
    assert "no longer has any rights" in call(url, "revoke", name).output
    assert call(url, "logins").stdout.split() == [f"{name}2", "reader", "(all)"]


def test_a_file_has_no_logins(sqlite: str) -> None:
    call(sqlite, "upgrade")
    with pytest.raises(LoginError, match="Only a PostgreSQL store has logins"):
        call(sqlite, "grant", "ada", "--role", "reader")
