"""What a tenant's pods, rows and files do to a person's terminal, spreadsheet and notebook."""

import asyncio
import contextlib
import csv
import io
import json
import os
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote_plus

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from dashboard_data import Store
from fuzzing import TEXT, fuzzed
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from dapo_core import read
from dapo_core.cli import chaos
from dapo_core.cli.chaos import NoTargetError, Storm
from dapo_core.cli.log_reading import LogPrinter, StoredLog
from dapo_core.cli.main import app, print_error
from dapo_core.cli.terminal import print_all, say
from dapo_core.db import CheckpointRow, Point, RunRow, SamplesRow, WriteBatch
from dapo_core.errors import StoreError
from dapo_core.objectstore import open_store
from dapo_core.run.fault_outcomes import Sight
from dapo_core.run.fault_plan import FaultKind, PlannedFault
from dapo_core.run.formatting import cell, printable
from dapo_core.run.log_keys import PART_BYTES, PodLog, parse_log_key
from dapo_dashboard.pages.widgets import frame
from dapo_dashboard.reads.cached_reader import CachedReader
from dapo_dashboard.reads.raw_points import points_csv
from dapo_trainer.checkpoint_tool import command
from dapo_trainer.checkpoints.checkpoint_store import CheckpointStore, LocalCheckpoint

FORMULAS = [
    '=HYPERLINK("http://evil","x")',
    "+cmd|' /C calc'!A0",
    "-2+3+cmd|' /C calc'!A0",
    "-E1",
    "@SUM(1)",
    " \t=1+1",
    "\uff1d1",
]
ESCAPES = "\x1b]0;title\x07\x1b[2J\u202e\x9b31m"
FIRST = set("=+-@\uff1d\uff0b\uff0d\uff20")


def is_formula(text: str) -> bool:
    """As a spreadsheet tells: by the first character that is no blank. A number is none."""
    is_number = re.fullmatch(r"[-+][0-9.]+([eE][-+]?[0-9]+)?", text)
    computes = any(character.isalpha() or character in "(!|=@" for character in text)
    return text.strip()[:1] in FIRST and computes and not is_number


def saved(text: str) -> list[list[str]]:
    return list(csv.reader(io.StringIO(text)))


@given(st.one_of(TEXT, st.sampled_from(FORMULAS), st.tuples(st.sampled_from(sorted(FIRST)), TEXT).map("".join)))
@fuzzed
def test_e1_any_text_is_no_formula(text: str) -> None:
    assert not is_formula(cell(text))
    assert cell(text) in (text, f"'{text}")


@pytest.mark.parametrize("text", ["-5", "+1.5e-3", "-2E7", "-", "-/200", "1-2", "a=b", "", "-12:30", "\n\nSo x = 5."])
def test_e1_numbers_and_plain_texts_stay(text: str) -> None:
    assert cell(text) == text


def test_e1_no_cell_of_a_saved_chart_is_a_formula(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.writer.create_run(RunRow("r", "r", created_at=1.0))
    store.writer.write("r", WriteBatch([Point.of(name, 1, 1, 1.0, -2.5) for name in FORMULAS]))
    head, row = saved(points_csv(CachedReader(store.url), ["r"], FORMULAS))
    assert head[4:] == [f"'{name}" for name in FORMULAS] and row[4:] == ["-2.5"] * len(FORMULAS)


def test_e1_no_cell_of_an_exported_table_is_a_formula(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.writer.create_run(RunRow("r", "r", created_at=1.0))
    checkpoint = CheckpointRow("r", 1, 1, "committed", FORMULAS[0], 9.0, metrics={FORMULAS[0]: 1.0})
    batch = WriteBatch([Point.of(name, 1, 1, 1.0, -2.5) for name in FORMULAS], checkpoints=[checkpoint])
    store.writer.write("r", batch)
    out = tmp_path / "out"
    words = ["export", "r", str(out), "--metrics", "csv", "--metadata", store.url, "--home", str(tmp_path)]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.exception
    _, *rows = saved((out / "metrics.csv").read_text())
    assert sorted(row[0] for row in rows) == sorted(f"'{name}" for name in FORMULAS)
    assert {row[4] for row in rows} == {"-2.5"}
    assert not any(is_formula(each) for line in saved((out / "checkpoints.csv").read_text()) for each in line)


def test_e1_no_cell_of_a_pages_table_is_a_formula() -> None:
    """Streamlit's own button saves a table as CSV, with what is in it."""
    table = frame({"Text": [*FORMULAS], "Tags": [[one, "b"] for one in FORMULAS], "=Value": [-1.5] * len(FORMULAS)})
    assert list(table["Text"]) == [f"'{one}" for one in FORMULAS]
    assert all(tags[0].startswith("'") for tags in table["Tags"])
    assert list(table.columns) == ["Text", "Tags", "'=Value"] and list(table["'=Value"]) == [-1.5] * len(FORMULAS)


def is_text(printed: str) -> bool:
    """Whether nothing in it controls a terminal; colors of our own are."""
    return not set(printed) & {*map(chr, [*range(9), *range(11, 32), *range(127, 160)]), "\u202e"}


@pytest.mark.parametrize(
    "print_it",
    [
        pytest.param(lambda: say(ESCAPES), id="a line"),
        pytest.param(lambda: print_error(StoreError(f"Cannot open s3://{ESCAPES}.")), id="an error"),
        pytest.param(lambda: print_all(f"[/x] {ESCAPES}"), id="a table"),
    ],
)
def test_e2_a_command_prints_text(print_it: Callable[[], None], capsys: pytest.CaptureFixture[str]) -> None:
    print_it()
    out, err = capsys.readouterr()
    assert out + err and is_text(out + err.replace("\x1b[31m", "").replace("\x1b[0m", ""))


def test_e2_what_a_pod_says_to_dapo_chaos_is_text(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Pod(SimpleNamespace):
        async def look(self) -> Sight:
            raise StoreError(f"exec said {ESCAPES}")

        async def inject(self, fault: PlannedFault) -> str:
            raise NoTargetError(f"exec in rollout-0 ended with 1: {ESCAPES}")

        async def restore(self) -> None:
            pass

    monkeypatch.setattr(chaos, "LOOK_SECONDS", 0.0)
    fault = PlannedFault(0.0, FaultKind.WEDGE, "rollout", 0.5)
    asyncio.run(Storm(Pod(), [fault]).pass_over(0.05))
    said = capsys.readouterr().err
    assert "exec in rollout-0" in said and "exec said" in said and is_text(said)


@pytest.mark.parametrize("metric", ["[/x]", "[bold]a", f"m{ESCAPES}"])
def test_e2_a_jobs_metric_is_no_markup_of_the_list_of_checkpoints(metric: str, tmp_path: Path) -> None:
    store = Store(tmp_path)
    spec = {"spec": {"checkpoints": {"keepLast": 2, "keepBest": 1, "bestMetric": metric}}}
    run_id = "train-20261121-0412-x7k2"
    store.writer.create_run(RunRow(run_id, "train", spec=spec, created_at=1.0))
    (tmp_path / "local").mkdir()
    (tmp_path / "local" / "model.pt").write_bytes(b"weights")
    checkpoints = CheckpointStore(open_store((tmp_path / "store").as_uri()), run_id)
    checkpoints.commit(LocalCheckpoint(5, tmp_path / "local", 1, "d", metrics={metric: 0.25}))
    done = _checkpoints(store, tmp_path, "list", "train")
    assert done.exit_code == 0, done.exception
    assert printable(metric)[:3] in done.output and "(0.25)" in done.output
    assert is_text(done.output)


def _checkpoints(store: Store, home: Path, *words: str) -> Result:
    return CliRunner().invoke(command.checkpoints, [*words, "--metadata", store.url, "--home", str(home)])


@given(st.lists(st.binary(max_size=200), max_size=6))
@fuzzed
def test_e2_any_log_is_printed_as_lines_of_text(blocks: list[bytes]) -> None:
    lines: list[str] = []
    printer = LogPrinter(lines.append)
    printer.print(blocks)
    printer.end()
    printed = "".join(lines)
    printed.encode()
    assert is_text(printed) and all(line.endswith("\n") for line in lines)


@given(st.one_of(TEXT, st.from_regex(r"attempt-\d+/(head|trainer|rollout|\.\.)-\d+/\d+\.log", fullmatch=True)))
@fuzzed
def test_e7_any_key_of_a_log_is_one_of_the_run_or_none(rest: str) -> None:
    parsed = parse_log_key("r", f"r/logs/{rest}")
    if parsed is not None:
        log, part = parsed
        assert log.key("r", part).startswith("r/logs/attempt-") and ".." not in log.key("r", part)


def test_e7_a_part_of_a_log_is_read_no_further_than_a_part_goes(tmp_path: Path) -> None:
    store, log = open_store(tmp_path.as_uri()), PodLog(1, "head", 0)
    store.put_bytes(log.key("r", 1), b"first\n")
    with (tmp_path / log.key("r", 1)).open("r+b") as file:
        file.truncate(2**40)
    source = StoredLog(store, "r", log)
    assert sum(map(len, source.read())) == PART_BYTES
    assert list(source.read()) == []


URLS = st.tuples(st.sampled_from(["s3://", "file:///", "s3://b?", "s3://b?endpoint=http://", ""]), TEXT).map("".join)


@given(
    st.one_of(
        URLS,
        URLS.map(lambda url: quote_plus(url, ":/", errors="replace")),
        st.sampled_from(["s3://[/x", "file:///%00", "s3://b?endpoint=http://h:x"]),
    )
)
@fuzzed
def test_e6_any_url_of_a_store_is_one_or_a_sentence(url: str) -> None:
    with contextlib.suppress(StoreError):
        open_store(url)


@pytest.mark.parametrize(
    "spec",
    [{"spec": 5}, {"spec": {"checkpoints": [1]}}, {"spec": {"checkpoints": {"uri": {"a": 1}}}}, {"spec": None}, {}],
    ids=json.dumps,
)
def test_e6_a_spec_of_any_shape_names_no_store(spec: dict[str, object]) -> None:
    assert RunRow("r", "r", spec=spec).objects_url is None


def test_e6_one_runs_store_ends_no_delivery_of_others(tmp_path: Path) -> None:
    import typer

    from dapo_trainer.deliver import deliver

    store = Store(tmp_path)
    for name, uri in (("b", f"s3://[/{ESCAPES}"), ("a", "")):
        spec = {"spec": {"checkpoints": {"uri": uri}}}
        store.writer.create_run(RunRow(name, name, f"team-{name}", spec=spec, created_at=2.0 if name == "b" else 1.0))
    spool = open_store((tmp_path / "store").as_uri())
    spool.put_bytes("a/spool/attempt-1-abc/000000000001.jsonl", b"")
    commands = typer.Typer()
    commands.command()(deliver)
    done = CliRunner().invoke(commands, ["--metadata", store.url, "--home", str(tmp_path)])
    assert isinstance(done.exception, StoreError) and "Not everything was delivered" in str(done.exception)
    assert "a: " in done.output and "b: " in done.output and is_text(done.output)


class _Bomb:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def test_e8_samples_neither_run_code_nor_say_how_pandas_reads_them(tmp_path: Path) -> None:
    """An Arrow type of Python's own was unpickled by its reader (CVE-2023-47248), and `pandas` in a file's metadata
    makes its columns an index."""
    bomb = pickle.dumps(_Bomb(tmp_path / "ran"))
    pickled = {"ARROW:extension:name": b"arrow.py_extension_type", "ARROW:extension:metadata": bomb}
    field = pa.field("reward", pa.int64(), metadata=pickled)
    pandas = {"pandas": json.dumps({"index_columns": ["prompt"], "columns": [], "column_indexes": []}).encode()}
    table = pa.table(
        [["p"], [1], [99]], pa.schema([pa.field("prompt", pa.string()), field, ("step", pa.int64())], pandas)
    )
    sink = io.BytesIO()
    parquet.write_table(table, sink)
    store = Store(tmp_path)
    store.writer.create_run(RunRow("r", "r", created_at=1.0))
    key = "r/samples/step-000001-attempt-1.parquet"
    store.writer.write("r", WriteBatch(samples=[SamplesRow("r", 1, 1, key, 1, 9, 1.0)]))
    place = (tmp_path / "store").as_uri()
    open_store(place).put_bytes(key, sink.getvalue())
    found = read.samples(store.url, "r", place)
    assert sorted(found.to_pandas().columns) == ["attempt", "prompt", "reward", "step"]
    assert found.column("step").to_pylist() == [1] and not (tmp_path / "ran").exists()


def test_e8_samples_of_different_columns_are_a_sentence(tmp_path: Path) -> None:
    store, place = Store(tmp_path), (tmp_path / "store").as_uri()
    store.writer.create_run(RunRow("r", "r", created_at=1.0))
    for step, table in ((1, pa.table({"a": [1]})), (2, pa.table({"a": ["x"]}))):
        key, sink = f"r/samples/step-{step:06d}-attempt-1.parquet", io.BytesIO()
        parquet.write_table(table, sink)
        open_store(place).put_bytes(key, sink.getvalue())
        store.writer.write("r", WriteBatch(samples=[SamplesRow("r", step, 1, key, 1, 9, 1.0)]))
    with pytest.raises(StoreError, match="The samples of r have different columns"):
        read.samples(store.url, "r", place)
    assert read.samples(store.url, "r", place, [2]).column("a").to_pylist() == ["x"]
