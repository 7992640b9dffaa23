"""Evaluations in the metadata store and in `dapo show`."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from metadata_databases import metadata_url, reader, writer
from typer.testing import CliRunner

from dapo_core.cli import runs
from dapo_core.cli.main import app
from dapo_core.db import EvaluationRow, MetadataReader, MetadataWriter, RunRow, open_writer, upgrade
from dapo_core.errors import StoreError

__all__ = ["metadata_url", "reader", "writer"]


def estimate(value: float, low: float | None = None, high: float | None = None) -> dict[str, float | None]:
    return {"value": value, "low": low, "high": high}


RESULTS: dict[str, Any] = {
    "prompts": 30,
    "samples": 32,
    "mean": estimate(0.5, 0.375, 0.625),
    "sampling_error": 0.01,
    "pass_at": {"1": estimate(0.5), "32": estimate(0.8)},
    "majority": estimate(0.6),
    "lengths": {"mean": 1234.5, "median": 1000.0, "p95": 4000.0, "longest": 8000},
    "truncated": 0.02,
    "unstated": 0.0,
    "failures": 0,
    "subsets": {},
}
SAMPLING = {"samples": 32, "temperature": 1.0, "topP": 0.7, "maxResponseTokens": 20480}
ROW = EvaluationRow("e-1", "aime", "run-1@60", "run-1", 60, 100.0, "file:///a.parquet", SAMPLING, RESULTS)
MODEL = replace(ROW, evaluation_id="e-2", subject="file:///models/base", run_id=None, step=None, created_at=200.0)


def test_evaluations_come_back_newest_first(writer: MetadataWriter, reader: MetadataReader) -> None:
    writer.add_evaluations([ROW, replace(ROW, set_name="math")])
    writer.add_evaluations([MODEL])
    assert reader.evaluations() == [MODEL, ROW, replace(ROW, set_name="math")]
    assert reader.evaluations("run-1") == [ROW, replace(ROW, set_name="math")]
    assert reader.evaluations(subject="file:///models/base") == [MODEL]
    assert reader.evaluations("run-2") == []


def test_an_evaluation_is_recorded_once(writer: MetadataWriter, reader: MetadataReader) -> None:
    writer.add_evaluations([ROW])
    with pytest.raises(StoreError):
        writer.add_evaluations([replace(MODEL, evaluation_id="e-3"), ROW])
    assert reader.evaluations() == [ROW], "all rows or none"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    url = f"sqlite:///{tmp_path / 'dapo.db'}"
    upgrade(url)
    open_writer(url).create_run(RunRow("run-1", "run", created_at=1.0))
    open_writer(url).add_evaluations([ROW, MODEL])
    return tmp_path


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        pytest.param("run-1", ["Evaluations", "aime", "60", "50.0%", "37.5% to 62.5%", "80.0%", "1234.5"], id="a run"),
        pytest.param("file:///models/base", ["50.0%", "30 x 32, temperature 1, top-p 0.7"], id="a model"),
        pytest.param("/models/base", ["50.0%", "at most 20,480 tokens"], id="a model's folder"),
    ],
)
def test_show(home: Path, name: str, shown: list[str]) -> None:
    output = CliRunner().invoke(app, ["show", name, "--home", str(home)], env={"COLUMNS": "220"}).output
    assert [text for text in shown if text not in output] == [], output


def test_show_as_json(home: Path) -> None:
    for name in ("run-1", "/models/base"):
        assert '"aime"' in CliRunner().invoke(app, ["show", name, "--home", str(home), "--json"]).output


def test_what_is_neither_run_nor_model_is_refused_by_name(home: Path) -> None:
    result = CliRunner().invoke(app, ["show", "rum", "--home", str(home)])
    assert isinstance(result.exception, runs.UnknownRunError)
