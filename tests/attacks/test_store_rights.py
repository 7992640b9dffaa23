"""What one tenant's credentials may do in the stores, with the logins and users that the chart's accounts get."""

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase

import keep_database
import psycopg
import pytest
from planner_bench import SITE, raw_job
from psycopg import errors, sql
from servers.postgres import PostgresServer, database_of_its_owner, plain

from dapo_core import naming
from dapo_core.db import (
    AlertRow,
    AttemptRow,
    MetadataWriter,
    Point,
    RunRow,
    WriteBatch,
    dialects,
    open_reader,
    open_writer,
    roles,
    upgrade,
)
from dapo_core.db.recorder import Recorder
from dapo_core.db.roles import LoginError
from dapo_core.errors import StoreError
from dapo_core.naming import MAX_JOB_NAME
from dapo_core.run.entries import AttemptStarted, RunChanged, RunCreated
from dapo_operator.accounts import policy
from dapo_operator.jobs.dapojob import job_of

Session = psycopg.Connection[tuple[object, ...]]


@dataclass(frozen=True)
class Teams:
    """A store with a run of each of two teams: its owner's URL, who is no superuser, and each team's writer."""

    owner: str
    a: str
    b: str


def _login(owner: str, team: str) -> str:
    url = roles.grant(owner, f"{owner.rpartition('/')[2]}_{team}", "writer", f"team-{team}")
    assert url is not None
    return url.render_as_string(hide_password=False)


@pytest.fixture(scope="module")
def teams(postgres: PostgresServer) -> Teams:
    owner = database_of_its_owner(postgres)
    upgrade(owner, with_roles=True)
    made = Teams(owner, _login(owner, "a"), _login(owner, "b"))
    for team, url in (("a", made.a), ("b", made.b)):
        open_writer(url).create_run(RunRow(team, team, f"team-{team}", created_at=1.0))
        open_writer(url).write(team, WriteBatch([Point.of("loss", 1, 1, 1.0, 1.0)]))
    return made


@pytest.fixture
def attacker(teams: Teams) -> Iterator[Session]:
    with psycopg.connect(plain(teams.b)) as session:
        yield session
        session.rollback()


TABLES = (
    "run_keys",
    "curve_points",
    "points",
    "latest",
    "attempts",
    "rollups",
    "events",
    "checkpoints",
    "samples",
    "deliveries",
    "metric_names",
)


@pytest.mark.parametrize("table", TABLES)
def test_a04_no_login_of_a_tenant_locks_a_table(table: str, attacker: Session) -> None:
    with pytest.raises(errors.InsufficientPrivilege):
        attacker.execute(sql.SQL("LOCK TABLE {} IN SHARE MODE").format(sql.Identifier(table)))


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO metric_names (metric_id, name) SELECT n, 'x' || n FROM generate_series(1, 3000) n",
        "SELECT nextval('metric_names_metric_id_seq')",
        "SELECT setval('metric_names_metric_id_seq', 2147483647)",
        "INSERT INTO run_keys (run_key, run_id) VALUES (1, 'b')",
        "UPDATE run_keys SET run_key = 7",
        "SELECT nextval('run_keys_run_key_seq')",
        "INSERT INTO run_keys (run_id) VALUES ('a')",
    ],
)
def test_a10_no_number_of_a_metric_or_a_run_can_be_taken(statement: str, attacker: Session) -> None:
    with pytest.raises(errors.InsufficientPrivilege):
        attacker.execute(statement.encode())


def test_a10_points_of_another_team_are_neither_seen_nor_written(teams: Teams, attacker: Session) -> None:
    with psycopg.connect(plain(teams.owner)) as owner:
        [(key,)] = owner.execute("SELECT run_key FROM run_keys WHERE run_id = 'a'").fetchall()
    assert attacker.execute("SELECT run_id FROM run_keys").fetchall() == [("b",)]
    assert attacker.execute("SELECT FROM curve_points WHERE run_key = %s", (key,)).fetchall() == []
    assert attacker.execute("UPDATE curve_points SET value = 7 WHERE run_key = %s", (key,)).rowcount == 0
    with pytest.raises(errors.InsufficientPrivilege):
        attacker.execute("INSERT INTO curve_points VALUES (1, 1, 1, %s, 1, 1, NULL)", (key,))


def test_a10_names_of_one_team_leave_numbers_to_the_others(teams: Teams, attacker: Session) -> None:
    attacker.execute("INSERT INTO metric_names (name) SELECT 'mine/' || n FROM generate_series(1, 3000) n")
    attacker.commit()
    writer = open_writer(teams.a)
    writer.write("a", WriteBatch([Point.of(f"val/new/{number}", 1, 1, 1.0, 1.0) for number in range(100)]))
    assert open_reader(teams.a).latest("a")["val/new/99"].value == 1.0


def test_a10_a_name_without_a_number_is_an_error_of_the_store(teams: Teams, monkeypatch: pytest.MonkeyPatch) -> None:
    from dapo_core.db import writer

    monkeypatch.setattr(writer, "_metric_ids", lambda connection, names: {})
    with pytest.raises(StoreError, match="did not take the metric 'never/known'"):
        open_writer(teams.a).write("a", WriteBatch([Point.of("never/known", 1, 1, 1.0, 1.0)]))


def test_a13_temporary_tables_shadow_nothing(postgres: PostgresServer) -> None:
    """With the rights that servers give every login unless somebody revokes them."""
    owner = database_of_its_owner(postgres)
    upgrade(owner, with_roles=True)
    b = _login(owner, "b")
    open_writer(owner).create_run(RunRow("a", "a", "team-a", created_at=1.0))
    name = owner.rpartition("/")[2]
    with psycopg.connect(plain(postgres.url(name)), autocommit=True) as administrator:
        administrator.execute(sql.SQL("GRANT TEMPORARY ON DATABASE {} TO PUBLIC").format(sql.Identifier(name)))
    with psycopg.connect(plain(b)) as attacker:
        attacker.execute("CREATE TEMPORARY TABLE access (role text, namespace text)")
        attacker.execute("INSERT INTO access VALUES (session_user, NULL)")
        attacker.execute("GRANT SELECT ON access TO PUBLIC")
        assert attacker.execute("SELECT run_id FROM runs").fetchall() == []
        assert attacker.execute("SELECT dapo_scope()").fetchone() == ("team-b",)
        attacker.execute("CREATE FUNCTION pg_temp.coalesce(text, text) RETURNS text LANGUAGE sql AS $$ SELECT '*' $$")
        assert attacker.execute("SELECT run_id FROM runs").fetchall() == []


@pytest.mark.parametrize("right", ["create tables", "create temporary tables"])
def test_a13_an_upgrade_says_when_every_login_could_shadow_tables(right: str, postgres: PostgresServer) -> None:
    """A database that an administrator made: what the store's login does not own, it cannot revoke."""
    owner = database_of_its_owner(postgres)
    name = owner.rpartition("/")[2]
    with psycopg.connect(plain(postgres.url(name)), autocommit=True) as administrator:
        for statement in (
            "ALTER DATABASE {0} OWNER TO CURRENT_USER",
            "GRANT CREATE ON SCHEMA public TO PUBLIC"
            if right == "create tables"
            else "GRANT ALL ON SCHEMA public TO {0}",
        ):
            administrator.execute(sql.SQL(statement).format(sql.Identifier(name)))
    with pytest.raises(LoginError, match=f"may {right} in this database.* REVOKE CREATE ON SCHEMA"):
        upgrade(owner, with_roles=True)


def test_a14_a_new_password_replaces_the_old_one(teams: Teams) -> None:
    name = f"{teams.owner.rpartition('/')[2]}_leaked"
    leaked = roles.grant(teams.owner, name, "writer", "team-b", "old")
    renewed = roles.grant(teams.owner, name, "writer", "team-b", "new")
    assert leaked is not None and renewed is not None
    assert open_reader(renewed.render_as_string(hide_password=False)).only_namespace() == "team-b"
    with pytest.raises(StoreError, match="password authentication failed"):
        open_reader(leaked.render_as_string(hide_password=False)).runs()


def test_a16_one_login_leaves_connections_to_others(teams: Teams) -> None:
    name = f"{teams.owner.rpartition('/')[2]}_many"
    url = roles.grant(teams.owner, name, "writer", "team-b", most=3)
    assert url is not None
    address = plain(url.render_as_string(hide_password=False))
    held = [psycopg.connect(address) for _ in range(3)]
    with pytest.raises(psycopg.OperationalError, match="too many connections for role"):
        psycopg.connect(address)
    for connection in held:
        connection.close()


def test_a16_locks_that_anybody_may_take_stop_no_writer_and_no_upgrade(
    teams: Teams, attacker: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    attacker.execute("SELECT pg_advisory_xact_lock(hashtextextended('a', 8))")
    attacker.execute("SELECT pg_advisory_xact_lock(%s)", (dialects._MIGRATION_LOCK,))
    monkeypatch.setattr(dialects, "BUSY_TIMEOUT_MS", 2000)
    monkeypatch.setattr(dialects, "MIGRATION_MS", 2000)
    open_writer(teams.a).write("a", WriteBatch([Point.of("loss", 2, 1, 2.0, 1.0)]))
    open_writer(teams.owner).raise_alert(AlertRow("a", "NonFinite", 1.0, 1.0, "m", "Fail"))
    upgrade(teams.owner, with_roles=True)
    attacker.execute("SELECT 1 FROM runs FOR UPDATE")
    open_writer(teams.a).write("a", WriteBatch([Point.of("loss", 3, 1, 3.0, 1.0)]))


def test_a18_the_operators_login_writes_all_runs_and_is_no_administrator(teams: Teams) -> None:
    name = f"{teams.owner.rpartition('/')[2]}_operator"
    url = roles.grant(teams.owner, name, "operator", None)
    assert url is not None
    address = url.render_as_string(hide_password=False)
    writer = open_writer(address)
    writer.probe()
    _operators_work(writer)
    with psycopg.connect(plain(address)) as operator:
        for statement in (
            "CREATE ROLE mine",
            "SELECT * FROM access",
            "DELETE FROM runs",
            "DROP TABLE points",
            "GRANT pg_execute_server_program TO CURRENT_USER",
        ):
            with pytest.raises(psycopg.Error, match=r"permission denied|must "):
                operator.execute(statement.encode())
            operator.rollback()


BAD_ROWS = [
    "UPDATE curve_points SET value = 'Infinity'",
    "UPDATE curve_points SET value = 'NaN'",
    "UPDATE curve_points SET ts = '-Infinity'",
    "INSERT INTO points VALUES ('b', 1, -1, 1, 1, 1, NULL)",
    "UPDATE latest SET value = 'NaN'",
    "UPDATE latest SET step = -9223372036854775808",
    "UPDATE latest SET step = 9223372036854775807",
    "UPDATE latest SET ts = 'Infinity'",
    "UPDATE attempts SET step_to = 9223372036854775807",
    "INSERT INTO attempts (run_id, attempt, started_at) VALUES ('b', 2147483647, 1)",
    "UPDATE runs SET total_steps = 9223372036854775807",
    "UPDATE runs SET started_at = 'NaN'",
    "UPDATE runs SET tags = '[1]'",
    f"""UPDATE runs SET tags = '{{"a": "{"x" * 70_000}"}}'""",
    "UPDATE runs SET config = '7'",
    *(
        "INSERT INTO runs (run_id, name, namespace, state, created_at, tags, spec) VALUES "
        f"({run_id}, {name}, 'team-b', 'Created', {created}, '{{}}', {spec})"
        for run_id, name, created, spec in (
            ("'a/other'", "'b'", "1", "'{}'"),
            ("E'b\\x1b'", "'b'", "1", "'{}'"),
            ("'b3'", "E'b\\x1b[2J'", "1", "'{}'"),
            ("'b3'", "'b'", "'Infinity'", "'{}'"),
            ("'b3'", "'b'", "1", "'[]'"),
        )
    ),
    "INSERT INTO checkpoints (run_id, step, attempt, state, uri, updated_at, metrics) "
    "VALUES ('b', 1, 1, 'committed', 'u', 1, '[]')",
    "INSERT INTO samples VALUES ('b', 1, 1, 'k', -1, 1, 1)",
    "INSERT INTO events VALUES ('b', 'k', 'Infinity', 'Normal', 'R', 'm')",
    "INSERT INTO deliveries VALUES ('b', 's', -1)",
]


@pytest.mark.parametrize("statement", BAD_ROWS, ids=lambda text: text[:60])
def test_a03_a11_no_row_holds_what_others_cannot_compute_with(statement: str, attacker: Session) -> None:
    with pytest.raises(errors.CheckViolation):
        attacker.execute(statement.encode())


def test_a11_no_job_says_that_people_have_seen_its_alert(attacker: Session) -> None:
    alert = "INSERT INTO alerts VALUES ('b', %s, 1, 1, NULL, 1, 'message', 'Warn', %s, %s)"
    attacker.execute(alert, ("Plateau", None, None))
    attacker.execute("UPDATE alerts SET last_seen = 2 WHERE rule = 'Plateau'")
    for said in (("admin@example.org", None), (None, 5.0)):
        with pytest.raises(errors.InsufficientPrivilege), attacker.transaction():
            attacker.execute(alert, ("NonFinite", *said))


def test_a03_rows_from_before_the_limits_stay_and_are_checked_when_they_change(postgres: PostgresServer) -> None:
    owner = postgres.new_database()
    keep_database.load(owner, keep_database.FOLDER / "r0003.postgres.sql")
    with psycopg.connect(plain(owner), autocommit=True) as session:
        session.execute("UPDATE points SET value = 'NaN' WHERE step = 3")
        upgrade(owner)
        assert session.execute("SELECT count(*) FROM points WHERE value = 'NaN'").fetchone() != (0,)
        with pytest.raises(errors.CheckViolation):
            session.execute("UPDATE points SET ts = ts + 1 WHERE step = 3")


def test_a09_a_run_id_of_another_namespace_is_left_alone(teams: Teams, caplog: pytest.LogCaptureFixture) -> None:
    """Squatted: the row with the ID of a's run is b's when the operator records a's."""
    open_writer(teams.b).create_run(RunRow("squatted", "b", "team-b", created_at=1.0))
    recorder = Recorder(open_writer(teams.owner))
    failed = RunChanged("Failed", "R", "a's secret message", None, None)
    recorder.add("squatted", RunCreated("job", "team-a", {}, 1.0, 10), failed)
    recorder.add("squatted", AttemptStarted(1, 1.0, 0))
    assert recorder.flush() is None and recorder.waiting == 0
    row = open_reader(teams.b).run("squatted")
    assert row is not None and (row.state, row.message) == ("Created", None)
    assert open_reader(teams.b).attempts("squatted") == []
    assert "has the ID of another namespace's run" in caplog.text


def test_a09_the_ids_of_jobs_are_too_many_to_guess_and_those_of_running_ones_stay() -> None:
    job = job_of(raw_job("a" * MAX_JOB_NAME), SITE)
    assert len(job.run_id) == 63 and re.fullmatch(r"a+-\d{8}-\d{4}-[2-9a-z]{12}", job.run_id)
    assert naming.RUN_ID.fullmatch(job.run_id)
    old = job_of({**raw_job("first"), "status": {"runId": "first-20261121-0412-x7k2"}}, SITE)
    assert old.run_id == "first-20261121-0412-x7k2"


def _operators_work(writer: MetadataWriter) -> None:
    writer.create_run(RunRow("c", "c", "team-c", created_at=1.0))
    for run_id in ("a", "b", "c"):
        writer.start_attempt(AttemptRow(run_id, 2, time.time()))
        writer.update_run_state(run_id, "Running", started_at=1.0)
        writer.raise_alert(AlertRow(run_id, "Entropy", 1.0, 1.0, "m", "Warn"))
        writer.clear_alert(run_id, "Entropy", 2.0)
        writer.end_attempt(run_id, 2, reason="Killed")
        writer.write(run_id, WriteBatch([Point.of("loss", 9, 2, 2.0, 1.0)]))


def may_list(namespace: str, prefix: str) -> bool:
    """Whether the policy of the namespace's user allows a listing with this prefix."""
    [listing] = [
        each for each in policy("dapo", namespace, write=True)["Statement"] if "s3:ListBucket" in each["Action"]
    ]
    return any(fnmatchcase(prefix, allowed) for allowed in listing["Condition"]["StringLike"]["s3:prefix"])


@pytest.mark.parametrize("prefix", ["", "team", "team-a/", "team2/", "tea", "t"])
def test_a15_no_listing_reaches_a_namespace_of_a_longer_name(prefix: str) -> None:
    assert not may_list("team", prefix)


@pytest.mark.parametrize("prefix", ["team/", "team/run/", "team/run/checkpoints/step-1"])
def test_a15_ones_own_folder_is_listed(prefix: str) -> None:
    assert may_list("team", prefix)
