"""What a tenant writes into rows, samples and links, against the pages and the terminal."""

import dataclasses
import io
import tracemalloc
from pathlib import Path

import builders
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from dashboard_data import Store
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from typer.testing import CliRunner

from dapo_core.cli.main import app
from dapo_core.cli.terminal import AsText
from dapo_core.db import AlertRow, AmbiguousRunError, EventRow, MetadataReader, RunRow, SamplesRow, open_reader
from dapo_core.errors import StoreError
from dapo_core.objectstore import open_store
from dapo_dashboard import context
from dapo_dashboard.charts.view import window_of
from dapo_dashboard.reads import comparison, stored_samples
from dapo_dashboard.reads.cached_reader import CachedReader, NothingReadError
from dapo_dashboard.reads.stored_samples import read_samples, store_url
from dapo_dashboard.server_settings import Access, DashboardSettings, person

SERVER = DashboardSettings("", store_url="s3://dapo/{namespace}?endpoint=http://minio:9000&pathStyle=true")
OWN = "s3://dapo/b?endpoint=http://minio:9000&pathStyle=true"


def run_of_b(uri: str) -> RunRow:
    return RunRow("b/run", "x", "b", spec={"spec": {"checkpoints": {"uri": uri}}})


@pytest.mark.parametrize(
    "uri",
    [
        "s3://evil/dapo?endpoint=http://x.b.svc:9000&pathStyle=false",
        "s3://evil/b?endpoint=http://minio:9000",
        "s3://dapo/b?endpoint=http://x.b.svc:9000",
        "s3://dapo/b?endpoint=http://minio:9000@x.b.svc",
        "s3://dapo/b/../a?endpoint=http://minio:9000",
        "s3://dapo/ab?endpoint=http://minio:9000",
        "s3://dapo",
        "file:///proc/self",
        "http://x.b.svc/dapo/b",
        "s3://[/b",
    ],
)
def test_a05_the_dashboard_opens_nothing_that_a_job_names_elsewhere(uri: str) -> None:
    with pytest.raises(StoreError, match="outside the folder of namespace b"):
        store_url(run_of_b(uri), SERVER)


@pytest.mark.parametrize("rest", ["", "&region=eu-1", "&pathStyle=false"])
def test_a05_only_the_folder_is_taken_from_a_job(rest: str) -> None:
    found = store_url(run_of_b(f"s3://dapo/b/deep?endpoint=http://minio:9000{rest}"), SERVER)
    assert found == OWN.replace("/b?", "/b/deep?")
    assert store_url(run_of_b(""), SERVER) == OWN


def test_a05_each_namespace_may_have_a_bucket_of_its_own() -> None:
    server = dataclasses.replace(SERVER, store_url="s3://dapo-{namespace}?endpoint=http://minio:9000")
    assert store_url(run_of_b("s3://dapo-b?endpoint=http://minio:9000"), server) == store_url(run_of_b(""), server)
    with pytest.raises(StoreError, match="outside the folder of namespace b"):
        store_url(run_of_b("s3://dapo-a?endpoint=http://minio:9000"), server)


def test_a11_a_small_file_of_many_rows_is_refused_before_it_fills_the_memory(tmp_path: Path) -> None:
    rows = 100_000
    column = pa.array(["x" * 10_000]).take(pa.array([0] * 16)).dictionary_encode()
    table = pa.table({"prompt": pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), column.dictionary)})
    sink = io.BytesIO()
    parquet.write_table(table, sink)
    assert len(sink.getvalue()) < 100_000
    key = "r/samples/bomb.parquet"
    open_store(tmp_path.as_uri()).put_bytes(key, sink.getvalue())
    tracemalloc.start()
    with pytest.raises(StoreError, match="samples"):
        read_samples(tmp_path.as_uri(), SamplesRow("r", 1, 1, key, 1, 1, 1.0))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 * stored_samples.MAX_BYTES


@given(st.text(max_size=400))
def test_a11_any_window_of_a_url_is_one_that_databases_take(text: str) -> None:
    for query in ({"from": "0", "to": text}, {"from": text, "to": "9" * 30}, {"from": "0", "to": "1" + "0" * 30}):
        window = window_of(query)
        assert window is None or 0 <= window[0] < window[1] < 2**53


@pytest.mark.parametrize("name", ["\0", "a\0b", "\ud800", "x" * 254])
def test_a11_a_name_that_no_database_takes_is_no_run(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context, "read_run", lambda name: pytest.fail("was asked"))
    assert context.visible_run(name) is None


def test_a11_a_rejected_read_is_no_outage_for_others(tmp_path: Path) -> None:
    from dapo_core.db import RejectedError

    store = Store(tmp_path)
    reader = CachedReader(store.url)

    def rejected(db: MetadataReader, last: object) -> object:
        raise RejectedError("bigint out of range")

    with pytest.raises(NothingReadError):
        reader.read(("hostile",), rejected)
    assert reader.outage is None
    assert reader.read(("others",), lambda db, _: len(db.runs())).problem is None


def test_a11_runs_of_the_future_hide_no_other_namespaces(tmp_path: Path) -> None:
    store = Store(tmp_path)
    for number in range(40):
        store.writer.create_run(RunRow(f"b{number}", "b", "team-b", created_at=9e10 + number))
        store.writer.raise_alert(AlertRow(f"b{number}", "NonFinite", 9e10 + number, 9e10 + number, "m", "Warn"))
    store.writer.create_run(RunRow("a1", "a", "team-a", created_at=1.0))
    store.writer.raise_alert(AlertRow("a1", "NonFinite", 1.0, 1.0, "m", "Warn"))
    reader = open_reader(store.url)
    rows, alerts = reader.run_table(limit=10), reader.alerts(limit=10)
    assert len(rows) == len(alerts) == 10 and "a1" in {row.run_id for row in rows} & {row.run_id for row in alerts}
    assert [row.created_at for row in rows] == sorted((row.created_at for row in rows), reverse=True)


@pytest.mark.parametrize("squatter", [RunRow("train", "x", "team-b"), RunRow("train-b", "train", "team-b")])
def test_a11_a_name_that_two_teams_use_means_neither(squatter: RunRow, tmp_path: Path) -> None:
    """Else `dapo checkpoints export train` reads what b put there."""
    store = Store(tmp_path)
    a = RunRow("train-20261121-0412-x7k2", "train", "team-a", created_at=1.0)
    for run in (a, dataclasses.replace(squatter, created_at=2.0)):
        store.writer.create_run(run)
    reader = open_reader(store.url)
    with pytest.raises(AmbiguousRunError, match="in the namespaces team-a, team-b: name one by its ID"):
        reader.run("train")
    assert reader.run(a.run_id) == reader.run("train", ["team-a"]) == a
    done = CliRunner().invoke(app, ["show", "train", "--metadata", store.url])
    assert isinstance(done.exception, AmbiguousRunError)
    store.writer.create_run(RunRow("other", a.run_id, "team-b", created_at=3.0))
    assert reader.run(a.run_id) == a, "an ID is not shadowed by a name"


def test_e4_a_job_that_takes_seconds_to_write_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """A trainer may record a configuration of megabytes: to hide secrets in it and write it took all viewers' time."""
    long = {"spec": {f"k{number}": "v" for number in range(20_000)}}
    runs = [RunRow("a", "a", "b", spec=long), RunRow("b", "b", "b", spec={"spec": {"x": 1}})]
    monkeypatch.setattr(comparison, "without_secrets", lambda job: job if job is not long else pytest.fail("was read"))
    assert comparison.is_long(long) and not comparison.is_long(builders.dumped(builders.job()))
    assert comparison.differences(runs)["spec"] == ["more than 262,144 characters", "-"]


def test_a20_markup_and_escapes_are_shown_as_text(tmp_path: Path) -> None:
    store = Store(tmp_path)
    hostile = "[/dev/shm/x] [link=http://x]here[/link] \x1b]0;title\x07 \x1b[2J :smile:"
    store.writer.create_run(
        RunRow("[/x]", hostile, spec=builders.dumped(builders.job()), created_at=1.0, owner=hostile, message=hostile)
    )
    store.writer.write_events("[/x]", [EventRow("[/x]", "1", 1.0, "Warning", hostile, hostile)])
    for command in (["runs"], ["show", "[/x]"]):
        done = CliRunner().invoke(app, [*command, "--metadata", store.url], env={"COLUMNS": "300"})
        assert done.exit_code == 0, done.output
        assert "[/x]" in done.output and "\x1b" not in done.output and "\x07" not in done.output
    assert "[link=http://x]" in done.output and ":smile:" in done.output


@given(st.text(st.characters(codec=None), max_size=100))
def test_a20_any_text_is_printed_without_control_characters(text: str) -> None:
    console = Console(file=io.StringIO(), markup=False, emoji=False, width=200, force_terminal=False)
    console.print(AsText(text))
    said = console.file.getvalue()  # type: ignore[attr-defined]
    said.encode()
    assert not set(said) & {chr(code) for code in range(32) if chr(code) not in "\n\t"}


@pytest.mark.parametrize("claimed", [False, "false", "False", None, 0], ids=repr)
def test_doubt_7_an_address_that_was_not_verified_is_nobodys(claimed: object) -> None:
    """Where a provider lets people register with any address, `claim: email` gave them its owner's namespaces."""
    user = {"email": "boss@example.org", "email_verified": claimed, "preferred_username": "b", "sub": "17"}
    assert Access("email", {"boss@example.org": ["*"]}, ["demo"]).namespaces(user) == frozenset({"demo"})
    assert person(user) == "b"


@pytest.mark.parametrize("claims", [{"email_verified": True}, {"email_verified": "true"}, {}], ids=repr)
def test_doubt_7_a_verified_address_is_a_name(claims: dict[str, object]) -> None:
    user = {"email": "boss@example.org", "preferred_username": "b", **claims}
    assert Access("email", {"boss@example.org": ["*"]}).namespaces(user) is None
    assert person(user) == "boss@example.org"
