"""What each login of a Postgres store may do: its own namespace's rows, and no more than its part needs."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass

import psycopg
import pytest
from psycopg import errors
from servers.postgres import PostgresServer, database_of_its_owner, plain

from dapo_core.db import (
    AlertRow,
    AttemptRow,
    CheckpointRow,
    EventRow,
    MetadataWriter,
    Point,
    RunRow,
    SamplesRow,
    WriteBatch,
    open_reader,
    open_writer,
    roles,
    upgrade,
)
from dapo_core.db.outbox import Outbox
from dapo_core.db.roles import LoginError
from dapo_core.errors import StoreError
from dapo_core.run.annotations import AnnotationRow

Session = psycopg.Connection[tuple[object, ...]]


@dataclass(frozen=True)
class Logins:
    """A store with a run of each of two teams, and the URLs of its logins."""

    owner: str
    writer: str
    reader: str
    acknowledger: str
    overseer: str
    notifier: str


def fill(writer: MetadataWriter, run_id: str, namespace: str) -> None:
    writer.create_run(RunRow(run_id, "job", namespace=namespace, spec={"secret": "s3 key"}, created_at=1.0))
    writer.start_attempt(AttemptRow(run_id, 1, 1.0))
    writer.write(run_id, batch(run_id))
    writer.raise_alert(AlertRow(run_id, "NonFinite", 1.0, 1.0, "m", "Fail"))


def batch(run_id: str, value: float = 1.0) -> WriteBatch:
    return WriteBatch(
        points=[Point.of("loss", step, 1, value, value) for step in range(40)],
        events=[EventRow(run_id, f"e{value}", 1.0, "Normal", "Started", "m")],
        checkpoints=[CheckpointRow(run_id, 5, 1, "committed", "s3://b/x", value, metrics={"acc": 0.5})],
        samples=[SamplesRow(run_id, 5, 1, "k", 1, 1, value)],
    )


@pytest.fixture(scope="module")
def logins(postgres: PostgresServer) -> Logins:
    owner = postgres.new_database(upgraded=True)
    upgrade(owner, with_roles=True)
    name = owner.rpartition("/")[2]
    granted: tuple[tuple[str, roles.Group, str | None], ...] = (
        ("writer", "writer", "team-a"),
        ("reader", "reader", "team-a"),
        ("acknowledger", "acknowledger", "team-a"),
        ("overseer", "reader", None),
        ("notifier", "notifier", "team-a"),
    )
    found = {kind: roles.grant(owner, f"{name}_{kind}", group, namespace) for kind, group, namespace in granted}
    writer = open_writer(owner)
    fill(writer, "a", "team-a")
    fill(writer, "b", "team-b")
    return Logins(owner, **{kind: url.render_as_string(hide_password=False) for kind, url in found.items() if url})


@pytest.fixture
def session(request: pytest.FixtureRequest, logins: Logins) -> Iterator[Session]:
    """A plain connection of the login that the test names, whose work is undone."""
    with psycopg.connect(plain(getattr(logins, request.param))) as connection:
        yield connection
        connection.rollback()


def test_a_writer_does_a_trainers_work(logins: Logins) -> None:
    writer = open_writer(logins.writer)
    fill(writer, "a", "team-a")
    fill(writer, "a2", "team-a")
    writer.write("a", batch("a", 2.0))
    writer.write(
        "a", WriteBatch(points=[Point.of("a metric nobody had", 500, 1, 3.0, 1.0), Point.of("loss", 500, 1, 3.0, 1.0)])
    )
    writer.update_run_state("a", "Running", started_at=1.0)
    writer.update_run("a", config={"x": 1})
    writer.attempt_resumed("a", 1, 0)
    writer.end_attempt("a", 1, reason="Done", exit_code=0)
    writer.clear_alert("a", "NonFinite", 9.0)
    upgrade(logins.writer)
    reader = open_reader(logins.overseer)
    found = reader.run("a")
    assert found is not None and (found.state, found.config) == ("Running", {"x": 1})
    assert [point.value for point in reader.curve("a", "loss")][:2] == [2.0, 2.0]


def test_readers_see_their_namespace_and_overseers_all(logins: Logins) -> None:
    reader, overseer = open_reader(logins.reader), open_reader(logins.overseer)
    assert {run.run_id[0] for run in reader.runs()} == {"a"} and reader.run("b") is None
    assert {row.run_id[0] for row in reader.run_table(["loss"])} == {"a"}
    assert reader.curve("b", "loss") == [] and reader.buckets(["b"], ["loss"]) == {} and reader.alerts(["b"]) == []
    assert reader.events("b") == [] and reader.checkpoints("b") == [] and reader.samples("b") == []
    assert len(overseer.curve("b", "loss")) == 40 and overseer.run("b") is not None


def test_a_reader_knows_to_which_namespace_it_is_bound(logins: Logins) -> None:
    bound = {url: open_reader(getattr(logins, url)).only_namespace() for url in ("reader", "overseer", "owner")}
    assert bound == {"reader": "team-a", "overseer": None, "owner": None}


FOREIGN: dict[str, Callable[[MetadataWriter], object]] = {
    "points": lambda writer: writer.write("b", WriteBatch(points=[Point.of("loss", 1, 1, 9.0, 9.0)])),
    "points of a run that is not there": lambda writer: writer.write(
        "c", WriteBatch(points=[Point.of("loss", 1, 1, 9.0, 9.0)])
    ),
    "events": lambda writer: writer.write_events("b", [EventRow("b", "x", 1.0, "Normal", "R", "m")]),
    "checkpoints": lambda writer: writer.write(
        "b", WriteBatch(checkpoints=[CheckpointRow("b", 9, 1, "deleting", "u", 9.0)])
    ),
    "a new run": lambda writer: writer.create_run(RunRow("b2", "job", namespace="team-b")),
    "an attempt": lambda writer: writer.start_attempt(AttemptRow("b", 2, 1.0)),
    "an alert": lambda writer: writer.raise_alert(AlertRow("b", "R", 1.0, 1.0, "m", "Warn")),
}


@pytest.mark.parametrize("act", FOREIGN.values(), ids=FOREIGN.keys())
def test_a_writer_can_not_add_to_another_namespace(act: Callable[[MetadataWriter], object], logins: Logins) -> None:
    with pytest.raises(StoreError, match="violates row-level security policy"):
        act(open_writer(logins.writer))


FORBIDDEN = {
    "writer: the namespaces of logins": ("writer", "SELECT * FROM access"),
    "writer: another namespace for itself": ("writer", "UPDATE access SET namespace = 'team-b'"),
    "writer: password hashes": ("writer", "SELECT rolpassword FROM pg_authid"),
    "writer: files of the server": ("writer", "SELECT pg_read_file('/etc/passwd')"),
    "writer: programs on the server": ("writer", "COPY runs TO PROGRAM 'cat'"),
    "writer: the owner's role": ("writer", "SET ROLE dapo"),
    "writer: a run to another namespace": ("writer", "UPDATE runs SET namespace = 'team-b'"),
    "writer: a run's spec": ("writer", "UPDATE runs SET spec = '{}'"),
    "writer: remove": ("writer", "DELETE FROM curve_points"),
    "writer: empty": ("writer", "TRUNCATE points"),
    "writer: acknowledge": ("writer", "UPDATE alerts SET acknowledged_by = 'me'"),
    "writer: rename a metric": ("writer", "UPDATE metric_names SET name = 'x'"),
    "writer: switch the policies off": ("writer", "ALTER TABLE points DISABLE ROW LEVEL SECURITY"),
    "writer: tables of its own": ("writer", "CREATE TABLE mine (x int)"),
    "reader: insert": ("reader", "INSERT INTO metric_names (name) VALUES ('x')"),
    "reader: update": ("reader", "UPDATE runs SET state = 'Failed'"),
    "reader: delete": ("reader", "DELETE FROM events"),
    "reader: acknowledge": ("reader", "UPDATE alerts SET acknowledged_by = 'me'"),
    "overseer: update": ("overseer", "UPDATE runs SET state = 'Failed'"),
    "acknowledger: the alert's own words": ("acknowledger", "UPDATE alerts SET message = 'fine'"),
    "writer: what was sent": ("writer", "SELECT * FROM notices"),
    "reader: what was sent": ("reader", "SELECT * FROM notices"),
    "writer: a note in somebody's name": (
        "writer",
        "INSERT INTO annotations VALUES ('a', 'note', '', 'x', 'ada', 1, false)",
    ),
    "reader: a note": ("reader", "INSERT INTO annotations VALUES ('a', 'note', '', 'x', 'ada', 1, false)"),
    "acknowledger: remove a note": ("acknowledger", "DELETE FROM annotations"),
    "acknowledger: a note of another run": ("acknowledger", "UPDATE annotations SET run_id = 'a2'"),
    "notifier: notes": ("notifier", "SELECT * FROM annotations"),
    "notifier: a spec": ("notifier", "SELECT spec FROM runs"),
    "notifier: curves": ("notifier", "SELECT * FROM curve_points"),
    "notifier: metrics": ("notifier", "SELECT * FROM metric_names"),
    "notifier: an alert": ("notifier", "UPDATE alerts SET message = 'fine'"),
    "notifier: a run": ("notifier", "UPDATE runs SET state = 'Failed'"),
    "notifier: remove": ("notifier", "DELETE FROM notices"),
    "acknowledger: another table": ("acknowledger", "UPDATE runs SET state = 'Failed'"),
}


@pytest.mark.parametrize(("session", "statement"), FORBIDDEN.values(), ids=FORBIDDEN.keys(), indirect=["session"])
def test_what_is_forbidden(session: Session, statement: str) -> None:
    with pytest.raises(errors.InsufficientPrivilege):
        session.execute(statement.encode())


UNSEEN = {
    "update": "UPDATE points SET value = 7 WHERE run_id = 'b'",
    "update by number": "UPDATE curve_points SET value = 7 WHERE run_key NOT IN (SELECT run_key FROM run_keys)",
    "update of state": "UPDATE runs SET state = 'Failed' WHERE run_id = 'b'",
    "read of a spec": "SELECT spec FROM runs WHERE namespace = 'team-b'",
    "read of a checkpoint": "SELECT uri FROM checkpoints WHERE run_id = 'b'",
    "by a function that leaks what it sees": "SELECT 1 FROM runs WHERE 1 / (namespace = 'team-a')::int > 1",
}


@pytest.mark.parametrize("statement", UNSEEN.values(), ids=UNSEEN.keys())
@pytest.mark.parametrize("session", ["writer"], indirect=True)
def test_rows_of_another_namespace_are_not_there(session: Session, statement: str) -> None:
    assert session.execute(statement.encode()).rowcount == 0


def test_an_acknowledger_acknowledges(logins: Logins) -> None:
    acknowledger = open_writer(logins.acknowledger)
    assert acknowledger.acknowledge("a", "NonFinite", 1.0, by="ada")
    assert not acknowledger.acknowledge("b", "NonFinite", 1.0, by="ada")
    assert {alert.acknowledged_by for alert in open_reader(logins.reader).alerts(["a"])} == {"ada"}


def test_an_acknowledger_records_what_people_say_of_its_namespaces_runs(logins: Logins) -> None:
    acknowledger = open_writer(logins.acknowledger)
    for at, note in ((1.0, "first"), (2.0, "second")):
        acknowledger.annotate([AnnotationRow("a", "note", "", note, "ada", at)])
    with pytest.raises(StoreError, match="violates row-level security policy"):
        acknowledger.annotate([AnnotationRow("b", "note", "", "x", "ada", 1.0)])
    assert [row.value for row in open_reader(logins.reader).annotations()] == ["second"]


def test_a_notifier_sees_the_alerts_of_its_namespace(logins: Logins) -> None:
    outbox = Outbox(logins.notifier, "slack")
    outbox.fill(2.0)
    assert {notice.run_id[0] for notice in outbox.claim(2.0, 300.0, 10)} == {"a"}
    assert open_reader(logins.notifier).only_namespace() == "team-a"


def test_a_login_without_a_namespace_sees_nothing(logins: Logins) -> None:
    with psycopg.connect(plain(logins.owner), autocommit=True) as owner:
        owner.execute("CREATE ROLE stray LOGIN PASSWORD 'p' IN ROLE dapo_reader")
        try:
            stray = logins.reader.replace(logins.reader.split("//")[1].split("@")[0], "stray:p")
            assert open_reader(stray).runs() == []
        finally:
            owner.execute("DROP ROLE stray")


def test_a_later_upgrade_renews_the_roles_and_keeps_the_logins(logins: Logins) -> None:
    before = roles.logins(logins.owner)
    upgrade(logins.owner, with_roles=True)
    assert roles.logins(logins.owner) == before and len(before) == 5
    assert {(group, namespace) for _, group, namespace in before} >= {
        ("dapo_writer", "team-a"),
        ("dapo_reader", None),
    }


def test_a_login_is_rebound_and_revoked(logins: Logins) -> None:
    name = logins.owner.rpartition("/")[2] + "_moved"
    url = roles.grant(logins.owner, name, "writer", "team-a")
    assert url is not None
    assert roles.grant(logins.owner, name, "reader", "team-b") is None
    reader = open_reader(url.render_as_string(hide_password=False))
    assert [run.run_id for run in reader.runs()] == ["b"]
    roles.revoke(logins.owner, name)
    with pytest.raises(StoreError):
        reader.runs()
    with pytest.raises(LoginError, match=f"There is no login '{name}'"):
        roles.revoke(logins.owner, name)


def test_roles_are_set_up_before_logins(postgres: PostgresServer) -> None:
    url = postgres.new_database(upgraded=True)
    with pytest.raises(LoginError, match="run `dapo db upgrade --roles` first"):
        roles.grant(url, "nobody_yet", "reader", None)
    with pytest.raises(StoreError, match="Only a PostgreSQL store has roles"):
        upgrade("sqlite://", with_roles=True)


@pytest.fixture
def created_role_owner(postgres: PostgresServer) -> str:
    """The URL of a database with roles whose owner is no superuser."""
    url = database_of_its_owner(postgres)
    upgrade(url, with_roles=True)
    return url


def test_an_owner_without_superuser_rights_revokes_a_login_that_is_connected(created_role_owner: str) -> None:
    login = created_role_owner.rpartition("/")[2] + "_leaked"
    url = roles.grant(created_role_owner, login, "writer", None)
    assert url is not None
    # Not committed at the end: a connection that was ended under a query refuses that, now and then.
    with closing(psycopg.connect(plain(url.render_as_string(hide_password=False)), autocommit=True)) as leaked:
        assert leaked.execute("SELECT count(*) FROM runs").fetchone() == (0,)
        assert roles.revoke(created_role_owner, login) == 0
        with pytest.raises(psycopg.OperationalError):
            leaked.execute("SELECT count(*) FROM runs")
    assert roles.logins(created_role_owner) == []


def test_an_upgrade_leaves_correct_policies_alone(logins: Logins) -> None:
    """It would wait for whoever reads a table, and all others for it."""
    upgrade(logins.owner, with_roles=True)
    with psycopg.connect(plain(logins.owner)) as reading:
        reading.execute("SELECT count(*) FROM curve_points")
        upgrade(logins.owner, with_roles=True)


def test_an_upgrade_restores_a_policy_beside_a_writer_without_a_deadlock(logins: Logins) -> None:
    with psycopg.connect(plain(logins.owner), autocommit=True) as owner:
        owner.execute("DROP POLICY dapo_read ON samples")
        with psycopg.connect(plain(logins.owner)) as writing, ThreadPoolExecutor() as threads:
            writing.execute("SET deadlock_timeout = '100ms'")
            writing.execute("SELECT 1 FROM runs WHERE run_id = 'a' FOR NO KEY UPDATE")
            writing.execute("UPDATE curve_points SET value = value")
            upgraded = threads.submit(upgrade, logins.owner, with_roles=True)
            time.sleep(1.0)
            for table in ("latest", "attempts", "events", "checkpoints", "samples", "alerts"):
                writing.execute(f"SELECT count(*) FROM {table}".encode())
            writing.commit()
            upgraded.result(60)
        found = owner.execute("SELECT count(*) FROM pg_policies WHERE tablename = 'samples'").fetchone()
    assert found == (2,)
