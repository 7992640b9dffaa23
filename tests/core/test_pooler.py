"""B15: the metadata store behind PgBouncer in transaction mode, where transactions of a connection are on several of
the server's, and connections of the server have transactions of several."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from servers.pgbouncer import PgBouncer
from servers.postgres import OWNER, PASSWORD, PostgresServer
from sqlalchemy import text

from dapo_core.db import AlertRow, Point, RunRow, WriteBatch, check, dialects, open_reader, open_writer, roles, upgrade
from dapo_core.db.convert import convert
from dapo_core.db.prune import DAY, Keep, apply, plan
from dapo_core.errors import StoreError

WRITERS = 8


@pytest.fixture(scope="module")
def pgbouncer(postgres: PostgresServer) -> Iterator[PgBouncer]:
    logins = {OWNER: PASSWORD, "pooled_writer": "w", "pooled_reader": "r"}
    pooler = PgBouncer(postgres.url("postgres"), logins).start()
    yield pooler
    pooler.close()


@pytest.fixture(scope="module")
def owner(postgres: PostgresServer, pgbouncer: PgBouncer) -> str:
    """A store that was set up through the pooler."""
    url = pgbouncer.url(postgres.new_database())
    upgrade(url, with_roles=True)
    return url


def login(owner: str, group: roles.Group) -> str:
    url = roles.grant(owner, f"pooled_{group}", group, "default", group[0])
    assert url is not None and url.query["pooler"] == "transaction", "what `dapo db grant` prints is complete"
    return url.render_as_string(hide_password=False)


def test_b15_many_writers_share_two_connections(owner: str) -> None:
    url = login(owner, "writer")

    def train(number: int) -> None:
        writer = open_writer(url)
        writer.create_run(RunRow(f"r{number}", "job", created_at=1.0))
        writer.probe()
        for step in range(40):
            points = [Point.of(f"m/{metric}", step, 1, float(step), step * number) for metric in range(5)]
            writer.write(f"r{number}", WriteBatch(points=points))
        writer.raise_alert(AlertRow(f"r{number}", "Entropy", 1.0, 1.0, "m", "Warn"))
        writer.close()

    with ThreadPoolExecutor(WRITERS) as threads:
        list(threads.map(train, range(WRITERS)))
    reader = open_reader(login(owner, "reader"))
    for number in range(WRITERS):
        assert [point.value for point in reader.curve(f"r{number}", "m/3")] == [step * number for step in range(40)]
        [bucket] = reader.buckets([f"r{number}"], ["m/3"], buckets=1)[f"r{number}", "m/3"]
        assert bucket.count == 40
    assert len(reader.run_table()) == len(reader.alerts()) == WRITERS
    reader.close()


def test_b15_settings_hold_in_each_transaction_and_only_there(owner: str, pgbouncer: PgBouncer) -> None:
    names = ("transaction_read_only", "lock_timeout", "jit")
    reader, writer = dialects.open_engine(owner, read_only=True), dialects.open_engine(owner)
    found = []
    for engine in (reader, writer):
        with engine.connect() as connection:
            found.append([str(connection.execute(text(f"SHOW {name}")).scalar()) for name in names])
        engine.dispose()
    assert found == [["on", "15s", "off"], ["off", "15s", "off"]]
    bare = dialects.create_engine(pgbouncer.url(owner, pooler=False).partition("?")[0])
    for _ in range(4):
        with bare.connect() as connection:
            assert [str(connection.execute(text(f"SHOW {name}")).scalar()) for name in names] == ["off", "0", "on"]
    bare.dispose()


def test_b15_the_owners_commands(owner: str) -> None:
    assert check(owner).is_current
    writer = open_writer(owner)
    writer.create_run(RunRow("old", "job", created_at=1.0))
    writer.write("old", WriteBatch([Point.of("m", step, 1, 1.0, 1.0) for step in range(64)]))
    writer.update_run_state("old", "Succeeded", ended_at=1.0)
    writer.close()
    assert list(convert(owner)) == []
    apply(owner, plan(owner, Keep(whole_days=1), 400 * DAY))
    assert plan(owner, Keep(whole_days=1), 400 * DAY).thin == []
    upgrade(owner, with_roles=True)


def test_b15_a_url_without_the_parameter_says_so(owner: str, pgbouncer: PgBouncer) -> None:
    reader = open_reader(pgbouncer.url(owner, pooler=False).partition("?")[0])
    with pytest.raises(StoreError, match=r"startup parameter.*add pooler=transaction to the parameters of its URL"):
        reader.runs()


def test_b15_another_mode_is_refused() -> None:
    with pytest.raises(StoreError, match="has pooler=statement: it must be pooler=transaction"):
        open_writer("postgresql://u:p@h/d?pooler=statement")
