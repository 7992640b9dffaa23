"""What came out of validations, as runs are compared by it."""

from dataclasses import replace

import pytest
from metadata_databases import metadata_url, reader, writer

from dapo_core.db import AttemptRow, MetadataReader, MetadataWriter, Point, RunRow, WriteBatch, run_table
from dapo_core.run.metrics import Validation, validation_of
from dapo_core.run.validations import ValidationResult, results_of

__all__ = ["metadata_url", "reader", "writer"]

AIME = Validation("aime", "mean", 8)
NAME = "val-core/aime/acc/mean@8"


@pytest.mark.parametrize(
    ("curve", "result"),
    [
        ([(0, 0.1), (10, 0.4), (20, 0.3)], ValidationResult(AIME, 0.3, 20, 0.4, 10)),
        ([(0, 0.4), (10, 0.4)], ValidationResult(AIME, 0.4, 10, 0.4, 0)),
        ([(0, 0.2), (10, None)], ValidationResult(AIME, 0.2, 0, 0.2, 0)),
        ([(0, None)], None),
    ],
    ids=["the best is not the last", "the first of equals", "not finite at the end", "never finite"],
)
def test_last_and_best(curve: list[tuple[int, float | None]], result: ValidationResult | None) -> None:
    assert results_of({NAME: curve, "val-core/aime/acc/best@8": [(0, 1.0)]}) == ([] if result is None else [result])


def test_results_are_of_the_newest_attempt_of_each_step(writer: MetadataWriter, reader: MetadataReader) -> None:
    run = RunRow("r-1", "r", spec={})
    for run_id in ("r-1", "r-2", "r-3"):
        writer.create_run(replace(run, run_id=run_id))
        for attempt in (1, 2):
            writer.start_attempt(AttemptRow(run_id, attempt, float(attempt)))
    values = [(10, 1, 0.9), (10, 2, 0.3), (20, 2, 0.2)]
    points = [Point.of(NAME, step, attempt, 1.0, value) for step, attempt, value in values]
    writer.write("r-1", WriteBatch(points=[*points, Point.of("dapo/reward/generated", 10, 1, 1.0, 5.0)]))
    other = "val-core/b/acc/mean@2"
    writer.write("r-2", WriteBatch(points=[Point.of(name, 5, 1, 1.0, 0.5) for name in (other, NAME)]))
    found = reader.validations(["r-1", "r-2", "r-3"])
    assert found["r-1"] == [ValidationResult(AIME, 0.2, 20, 0.3, 10)]
    assert [result.validation.set_name for result in found["r-2"]] == ["aime", "b"]
    assert "r-3" not in found


def test_a11_names_of_other_runs_are_not_read(
    writer: MetadataWriter, reader: MetadataReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = [f"val-core/set{number}/acc/mean@1" for number in range(30)]
    for run_id, names in (("shown", [NAME, "val-core/aime/acc/best@8", "loss"]), ("hostile", many)):
        writer.create_run(RunRow(run_id, run_id, spec={}))
        writer.start_attempt(AttemptRow(run_id, 1, 1.0))
        writer.write(run_id, WriteBatch(points=[Point.of(name, 5, 1, 1.0, 0.5) for name in names]))
    read = []

    def noting(name: str) -> Validation | None:
        read.append(name)
        return validation_of(name)

    monkeypatch.setattr(run_table, "validation_of", noting)
    assert [each.validation for each in reader.validations(["shown"])["shown"]] == [AIME]
    assert set(read) <= {NAME, "val-core/aime/acc/best@8"}
    monkeypatch.setattr(run_table, "MAX_VALIDATIONS", 7)
    assert len(reader.validations(["hostile"])["hostile"]) == 7
    whole = reader.validations(["shown", "hostile"])
    monkeypatch.setattr(run_table, "_MAX_METRICS", 1)
    assert reader.validations(["shown", "hostile"]) == whole and len(whole) == 2
