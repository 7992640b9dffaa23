"""What a tenant writes into its own rows of the metadata store, and locks it takes, against the operator's reads."""

import asyncio
import contextlib
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import builders
import psycopg
import pytest
from fuzzing import JSON, TEXT, fuzzed
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from planner_bench import Bench, raw_job
from servers.postgres import PostgresServer, plain

from dapo_core.db import (
    AttemptRow,
    CheckpointRow,
    MetadataWriter,
    Point,
    RunRow,
    WriteBatch,
    open_reader,
    open_writer,
    policies,
    roles,
    upgrade,
)
from dapo_core.run import metrics
from dapo_core.run.metrics import STEP_SECONDS
from dapo_core.run.progress import MAX_SECONDS, Cadence, Pace, seconds_left
from dapo_core.run.status import DAPOJobStatus
from dapo_operator.jobs.dapojob import status_body
from dapo_operator.metadata_store import MetadataStore, RunSnapshot

JOB = builders.job(schedule={"steps": 100})
OURS = ("a", "c", "d")


def fill(writer: MetadataWriter, run_id: str, namespace: str) -> None:
    writer.create_run(RunRow(run_id, run_id, namespace, spec=builders.dumped(JOB), created_at=1.0, total_steps=100))
    writer.start_attempt(AttemptRow(run_id, 1, 1.0, step_from=0))
    points = [Point.of(STEP_SECONDS, step, 1, float(step), 60.0) for step in range(1, 41)]
    points += [Point.of(metrics.REWARD_GENERATED, step, 1, float(step), 0.5) for step in range(1, 41)]
    saved = CheckpointRow(run_id, 20, 1, "committed", f"s3://b/{run_id}", 1.0, metrics={"acc": 0.5})
    writer.write(run_id, WriteBatch(points, checkpoints=[saved]))


@dataclass(frozen=True)
class Shop:
    """A store with runs of team-a and one of the attacker, as its owner and as the attacker's writer."""

    owner: str
    attacker: str


LIMITS = "SELECT conrelid::regclass, conname FROM pg_constraint WHERE conname LIKE 'ck\\_%'"


@pytest.fixture
def shop(postgres: PostgresServer) -> Shop:
    owner = postgres.new_database(upgraded=True)
    upgrade(owner, with_roles=True)
    login = roles.grant(owner, f"{owner.rpartition('/')[2]}_b", "writer", "team-b")
    assert login is not None
    writer = open_writer(owner)
    for run_id in OURS:
        fill(writer, run_id, "team-a")
    fill(writer, "b", "team-b")
    writer.close()
    # Rows from before the database limited what they hold.
    with psycopg.connect(plain(owner)) as connection:
        for table, name in connection.execute(LIMITS).fetchall():
            connection.execute(f"ALTER TABLE {table} DROP CONSTRAINT {name}".encode())
    return Shop(owner, plain(login.render_as_string(hide_password=False)))


@pytest.fixture
def attacker(shop: Shop) -> Iterator[psycopg.Connection[tuple[object, ...]]]:
    with psycopg.connect(shop.attacker) as connection:
        yield connection


def views(store: MetadataStore, url: str) -> dict[str, RunSnapshot]:
    reader = open_reader(url)
    for run_id in (*OURS, "b"):
        store.watch(run_id, JOB.spec, lambda: None)
    asyncio.run(store._read(reader))
    reader.close()
    return {run_id: store.view(run_id) for run_id in (*OURS, "b")}


DEEP = "[" * 1500 + "]" * 1500


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE points SET value = 'Infinity'",
        "UPDATE points SET value = 'NaN'",
        "UPDATE latest SET value = 'NaN'",
        "UPDATE points SET value = 1e308",
        "UPDATE latest SET step = -9223372036854775808",
        "UPDATE latest SET step = 9223372036854775807",
        "UPDATE latest SET ts = 'Infinity'",
        "UPDATE attempts SET step_to = 9223372036854775807, step_from = -9223372036854775808",
        "UPDATE runs SET total_steps = 9223372036854775807",
        f"UPDATE checkpoints SET metrics = '{DEEP}'",
        f"UPDATE runs SET tags = '{DEEP}'",
        """INSERT INTO runs (run_id, name, namespace, state, created_at, tags, spec) VALUES
           ('b2', 'b2', 'team-b', 'Created', 1, '{}', '{"spec":{"schedule":{"validateEvery":"x"}}}')""",
    ],
)
def test_a03_numbers_in_a_tenants_rows(
    shop: Shop, attacker: psycopg.Connection[tuple[object, ...]], change: str
) -> None:
    attacker.execute(change)
    attacker.commit()
    store = MetadataStore(shop.owner, time.time)
    store.watch("b2", JOB.spec, lambda: None)
    read = views(store, shop.owner)
    assert store.state == "ok"
    for run_id in OURS:
        progress, checkpoint = read[run_id].progress, read[run_id].checkpoint
        assert progress is not None and (progress.step, progress.eta_seconds) == (40, 3600)
        assert checkpoint is not None and checkpoint.step == 20
    if (of_b := read["b"].progress) is not None:
        json.dumps(status_body(DAPOJobStatus(progress=of_b)), allow_nan=False)
    reader = open_reader(shop.owner)
    assert reader.gpus(["a", "b", "b2"]).keys() >= {"a", "b"}
    assert {row.run_id for row in reader.run_table(metrics.HEADLINES)} >= set(OURS)


def test_a03_rows_that_cannot_be_read_hide_no_other_run(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever else a row can hold: the runs are read in halves until only that one is left out."""
    store, reader = MetadataStore(shop.owner, time.time), open_reader(shop.owner)
    progress = reader.progress

    def poisoned(run_ids: list[str], *rest: Any, **options: Any) -> Any:
        if "b" in run_ids:
            raise OverflowError("what nobody thought of")
        return progress(run_ids, *rest, **options)

    monkeypatch.setattr(reader, "progress", poisoned)
    for run_id in (*OURS, "b"):
        store.watch(run_id, JOB.spec, lambda: None)
    for _ in range(2):
        asyncio.run(store._read(reader))
    assert all(store.view(run_id).progress is not None for run_id in OURS) and store.view("b").progress is None
    assert caplog.text.count("run b in the metadata store") == 1, "told once"


FLOATS = st.floats() | st.sampled_from([1e308, -1e308, 5e-324])


@given(FLOATS, FLOATS, FLOATS, st.integers(-(2**63), 2**63 - 1), st.integers(-(2**63), 2**63 - 1))
@settings(max_examples=500, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a03_any_numbers_give_a_time_left_or_none(
    step_time: float, validation: float, checkpoint: float, step: int, total: int
) -> None:
    left = seconds_left(Pace(step_time, validation, checkpoint), step, total, Cadence(1, 1))
    assert left is None or 0 <= left <= MAX_SECONDS


async def probed(store: MetadataStore) -> str:
    """The state after one probe and one read."""
    assert store._url is not None and store._recorder is not None
    store._unwritable = await asyncio.to_thread(store._recorder.probe)
    reader = open_reader(store._url)
    await store._read(reader)
    reader.close()
    return store.state


def test_a04_a_table_lock_pauses_judgement(shop: Shop) -> None:
    """Tenants may not take one; whoever maintains the server may."""
    store = MetadataStore(shop.owner, time.time)
    assert asyncio.run(probed(store)) == "ok"
    with psycopg.connect(plain(shop.owner)) as maintenance:
        for table in ("curve_points", "latest", "attempts"):
            maintenance.execute(f"LOCK TABLE {table} IN SHARE MODE")
            assert asyncio.run(probed(store)) == "readonly", table
            maintenance.rollback()
            assert asyncio.run(probed(store)) == "ok"
    assert store.since > 0, "trainers get the time to deliver what they kept"


def test_a04_a_read_only_database_pauses_judgement(shop: Shop) -> None:
    name = shop.owner.rpartition("/")[2]
    with psycopg.connect(plain(shop.owner), autocommit=True) as owner:
        owner.execute(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')
    assert asyncio.run(probed(MetadataStore(shop.owner, time.time))) == "readonly"


def test_a04_a_login_that_may_not_try_counts_as_able_to_write(shop: Shop) -> None:
    writer = open_writer(shop.attacker.replace("postgresql://", "postgresql+psycopg://", 1))
    writer.probe()


def test_a04_no_healthy_job_stalls_while_nobody_can_write() -> None:
    bench = Bench(raw_job(runPolicy={"stallTimeoutSeconds": 600})).training().progress(3).settle()
    bench.seen = replace(bench.seen, store="readonly")
    bench.settle(100_000)
    assert bench.says("ProgressKnown") == ("False", "MetadataReadOnly")
    assert bench.status.phase == "Training" and bench.attempts == [(1, None)]
    bench.seen = replace(bench.seen, store="ok", store_since=bench.now)
    bench.settle(60)
    assert bench.attempts == [(1, None)]
    bench.settle(601)
    assert bench.attempts[0] == (1, "Stalled"), "a stall is one again once trainers can write"


COLUMNS = [
    (table.name, name) for table in policies.bound_tables() for name in sorted(set(table.columns.keys()) - {"run_id"})
]
SQL_VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    FLOATS,
    TEXT,
    JSON.map(json.dumps),
    st.integers(1, 5000).map(lambda levels: "[" * levels + "]" * levels),
    st.sampled_from(["infinity", "-infinity", "NaN", "{}", "[]", "null", "1e400", "\x1b[2J", "x" * 70_000]),
)


def test_a03_a11_anything_in_a_tenants_rows_hurts_nobody_else(postgres: PostgresServer, shop: Shop) -> None:
    """With the chart's roles and the database's limits, and without the limits, as rows from before them are."""
    limited = postgres.new_database(upgraded=True)
    upgrade(limited, with_roles=True)
    login = roles.grant(limited, f"{limited.rpartition('/')[2]}_b", "writer", "team-b")
    assert login is not None
    for run_id, namespace in ((OURS[0], "team-a"), (OURS[1], "team-a"), (OURS[2], "team-a"), ("b", "team-b")):
        fill(open_writer(limited), run_id, namespace)
    for owner, attacker in ((limited, plain(login.render_as_string(hide_password=False))), (shop.owner, shop.attacker)):
        with psycopg.connect(attacker, autocommit=True) as session:
            _write_anything(session)
        store = MetadataStore(owner, time.time)
        read = views(store, owner)
        assert store.state == "ok"
        assert all((progress := read[run_id].progress) is not None and progress.step == 40 for run_id in OURS)
        reader = open_reader(owner)
        assert {row.run_id for row in reader.run_table(metrics.HEADLINES)} >= set(OURS)
        assert {row.run_id for row in reader.runs()} >= set(OURS)


def _write_anything(session: psycopg.Connection[tuple[object, ...]]) -> None:
    columns = "run_id, name, namespace, state, created_at, tags, spec"
    new_run = f"INSERT INTO runs ({columns}) VALUES (%s, %s, %s, %s, %s, %s, %s)"
    namespaces = st.sampled_from(["team-b", "team-a", "", "*"])

    def execute(statement: str, values: Sequence[object]) -> None:
        # As texts, which the server reads as what the column is.
        with contextlib.suppress(psycopg.Error, UnicodeError):
            session.execute(statement.encode(), [None if value is None else str(value) for value in values])

    @given(st.lists(st.tuples(st.sampled_from(COLUMNS), SQL_VALUES), min_size=1, max_size=5))
    @fuzzed
    def change(changes: list[tuple[tuple[str, str], object]]) -> None:
        for (table, column), value in changes:
            execute(f"UPDATE {table} SET {column} = %s", [value])

    @given(st.tuples(TEXT, TEXT, namespaces, SQL_VALUES, SQL_VALUES, SQL_VALUES, SQL_VALUES))
    @fuzzed
    def create(values: tuple[object, ...]) -> None:
        execute(new_run, values)

    change()
    create()
