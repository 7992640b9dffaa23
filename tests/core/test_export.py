"""`dapo export` and `dapo_core.read`: every point, checkpoint and sample of a run, as files and as Arrow."""

import io
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import typer
from pyarrow import csv, parquet
from typer.testing import CliRunner, Result

from dapo_core import read
from dapo_core.cli.export import export
from dapo_core.db import CheckpointRow, Point, RunRow, SamplesRow, WriteBatch, open_writer, upgrade
from dapo_core.errors import StoreError
from dapo_core.objectstore import FolderStore

RUN = "arith-20261121-0412-x7k2"
SAMPLES = SamplesRow(RUN, 2, 1, f"{RUN}/samples/step-000002-attempt-1.parquet", 1, 100, 5.0)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A run whose second attempt has repeated step 2, with a value that is not finite, a checkpoint and samples."""
    url = f"sqlite:///{tmp_path / 'dapo.db'}"
    upgrade(url)
    writer = open_writer(url)
    writer.create_run(RunRow(RUN, "arith", created_at=1.0))
    points = [Point.of("loss", step, 1, step / 1, step / 2) for step in (1, 2, 3)]
    points += [Point.of("loss", 2, 2, 9.0, math.nan), Point.of("acc", 2, 2, 9.0, 0.25)]
    checkpoint = CheckpointRow(RUN, 2, 2, "committed", "file:///x", 9.0, size_bytes=7, metrics={"acc": 0.25})
    writer.write(RUN, WriteBatch(points, checkpoints=[checkpoint], samples=[SAMPLES]))
    buffer = io.BytesIO()
    parquet.write_table(pa.table({"prompt": ["1+1"], "reward": [1.0]}), buffer)
    FolderStore(tmp_path / "store").put_bytes(SAMPLES.key, buffer.getvalue())
    return tmp_path


def run(*words: str | Path) -> Result:
    app = typer.Typer()
    app.command()(export)
    return CliRunner().invoke(app, list(map(str, words)))


def rows(table: pa.Table) -> list[tuple[str, int, int]]:
    return [(row["metric"], row["step"], row["attempt"]) for row in table.to_pylist()]


POINTS = [("acc", 2, 2), ("loss", 1, 1), ("loss", 2, 2), ("loss", 3, 1)]


def test_every_point_is_in_the_table(home: Path) -> None:
    table = read.metrics(f"sqlite:///{home / 'dapo.db'}", RUN)
    assert rows(table) == POINTS and math.isnan(table.column("value")[2].as_py())
    assert rows(read.metrics(f"sqlite:///{home / 'dapo.db'}", "arith", ["acc"])) == POINTS[:1]
    assert read.metrics(f"sqlite:///{home / 'dapo.db'}", RUN, ["no such"]).num_rows == 0


READERS: dict[str, Callable[[Path], list[dict[str, Any]]]] = {
    "csv": lambda path: csv.read_csv(path).to_pylist(),
    "parquet": lambda path: parquet.read_table(path).to_pylist(),
    "json": lambda path: [json.loads(line) for line in path.read_text().splitlines()],
}


@pytest.mark.parametrize("kind", READERS)
def test_files_hold_all_of_it(kind: str, home: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shown = run(RUN, out, "--home", home, "--metrics", kind)
    assert shown.exit_code == 0, shown.output
    found = READERS[kind](out / f"metrics.{kind}")
    assert [(row["metric"], row["step"], row["attempt"]) for row in found] == POINTS
    (checkpoint,) = READERS[kind](out / f"checkpoints.{kind}")
    assert (checkpoint["step"], checkpoint["state"], checkpoint["size_bytes"]) == (2, "committed", 7)
    assert "acc" in str(checkpoint["metrics"])
    (sample,) = parquet.read_table(out / "samples.parquet").to_pylist()
    assert (sample["step"], sample["attempt"], sample["prompt"]) == (2, 1, "1+1")


def test_a_folder_with_files_is_not_written_to(home: Path, tmp_path: Path) -> None:
    shown = run(RUN, home, "--home", home)
    assert shown.exit_code != 0 and "already exists" in str(shown.exception)


@pytest.mark.parametrize("key", ["other/samples/a.parquet", f"{RUN}/samples/../../other/a.parquet"])
def test_samples_of_other_runs_are_not_read(key: str, home: Path) -> None:
    url = f"sqlite:///{home / 'dapo.db'}"
    open_writer(url).write(RUN, WriteBatch(samples=[replace(SAMPLES, key=key, ts=9.0)]))
    with pytest.raises(StoreError, match="is not a key of samples of the run"):
        read.samples(url, RUN, (home / "store").as_uri())


def test_an_unknown_run_is_an_error(home: Path) -> None:
    with pytest.raises(StoreError, match="There is no run 'nobody'"):
        read.metrics(f"sqlite:///{home / 'dapo.db'}", "nobody")
