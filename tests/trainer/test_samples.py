"""Samples: Parquet that any reader understands, bounded, written beside training."""

import io
from collections import Counter
from pathlib import Path

import duckdb
import pyarrow.parquet as pq
from pyarrow import fs
from servers.minio import ROOT, MinioServer
from store_fakes import MemoryStore, Notebook

from dapo_core.errors import StoreError
from dapo_core.objectstore import FolderStore
from dapo_core.objectstore.s3 import open_s3
from dapo_core.run.entries import Sample
from dapo_trainer.groups.sample_log import (
    MAX_CHARACTERS,
    MAX_ROWS,
    MAX_TOTAL,
    SampleLog,
    bounded,
    choose,
    read_samples,
    to_parquet,
)

SAMPLE = Sample("2+2=", "4 \u2713\n", "4", 1.0, 1.0, 3, False, '{"steps": 2}')


def test_samples_come_back(tmp_path: Path) -> None:
    store, notes = FolderStore(tmp_path), Notebook()
    log = SampleLog(store, "r", 2, notes)
    log.write(5, [SAMPLE, Sample("", "", "", float("nan"), 0.0, 0, True)])
    log.close()
    assert notes.indexed == [(5, "r/samples/step-000005-attempt-2.parquet", 2)]
    found = read_samples(store, notes.indexed[0][1])
    assert found[0] == SAMPLE and found[1].truncated and log.failures == 0


def test_the_columns() -> None:
    table = pq.read_table(io.BytesIO(to_parquet([SAMPLE])))
    assert [f"{field.name} {field.type}" for field in table.schema] == [
        "prompt string",
        "response string",
        "ground_truth string",
        "reward double",
        "accuracy double",
        "length int64",
        "truncated bool",
        "details string",
    ]
    assert to_parquet([]) != b""


def test_samples_are_bounded() -> None:
    store, notes = MemoryStore(), Notebook()
    log = SampleLog(store, "r", 1, notes)
    long = Sample("x" * 3 * MAX_CHARACTERS, "", "", 0.0, 0.0, 0, False)
    log.write(5, [long, *[SAMPLE] * (MAX_ROWS + 7)])
    log.close()
    found = read_samples(store, notes.indexed[0][1])
    assert len(found) == MAX_ROWS and len(found[0].prompt) < MAX_CHARACTERS + 10 and found[0].prompt.endswith("[...]")


def responses(kind: str, prompts: int, each: int) -> list[Sample]:
    return [
        Sample(f"{kind} {prompt:03}", f"{number}", "", 0.0, 0.0, 1, False)
        for prompt in range(prompts)
        for number in range(each)
    ]


def test_b11_training_responses_are_kept_where_a_validation_is() -> None:
    kept = Counter(sample.prompt.split()[0] for sample in choose(responses("v", 30, 32), responses("t", 512, 16)))
    assert kept == {"v": MAX_ROWS // 2, "t": MAX_ROWS // 2}
    assert len(choose(responses("v", 3, 2), responses("t", 512, 16))) == MAX_ROWS
    assert len(choose(responses("v", 30, 32), [])) == MAX_ROWS and choose([], []) == []


def test_b11_every_validation_prompt_has_a_response() -> None:
    kept = choose(responses("v", 30, 32), responses("t", 512, 16))
    of_prompt = Counter(sample.prompt for sample in kept if sample.prompt.startswith("v"))
    assert len(of_prompt) == 30 and set(of_prompt.values()) == {4, 5}
    assert kept == sorted(kept, key=lambda sample: sample.prompt)


def test_a_steps_samples_are_bounded_together() -> None:
    long = Sample("", "x" * MAX_CHARACTERS, "", 0.0, 0.0, 0, False)
    assert len(bounded([long] * MAX_ROWS)) == MAX_TOTAL // MAX_CHARACTERS
    assert bounded([]) == [] and bounded([SAMPLE] * 3) == [SAMPLE] * 3


def test_any_reader_reads_them_where_they_lie(minio: MinioServer, tmp_path: Path) -> None:
    """Written by our client, read from the bucket by Arrow's own, and by a database."""
    store, notes = open_s3(minio.url(bucket := minio.new_bucket()), minio.environment), Notebook()
    log = SampleLog(store, "r", 2, notes)
    log.write(5, [SAMPLE, SAMPLE])
    log.close()
    [(step, key, rows)] = notes.indexed
    assert (step, rows) == (5, 2)
    reader = fs.S3FileSystem(
        access_key=ROOT[0], secret_key=ROOT[1], endpoint_override=minio.endpoint, region="us-east-1", scheme="http"
    )
    assert pq.read_table(f"{bucket}/runs/{key}", filesystem=reader).to_pylist()[1]["response"] == SAMPLE.response
    store.get_file(key, tmp_path / "samples.parquet")
    with duckdb.connect() as database:
        found = database.execute("select count(*), avg(accuracy) from read_parquet(?)", [str(tmp_path / "*.parquet")])
        assert found.fetchone() == (2, 1.0)


def test_a_bad_store_costs_the_samples_alone() -> None:
    faults = iter([StoreError("The store is down.")])

    def fault(_operation: str, _key: str) -> None:
        if (error := next(faults, None)) is not None:
            raise error

    notes = Notebook()
    log = SampleLog(MemoryStore(fault), "r", 1, notes)
    log.write(5, [SAMPLE])
    log.write(10, [SAMPLE])
    log.close()
    assert [step for step, _, _ in notes.indexed] == [10] and notes.reasons() == ["SamplesFailed"]


def test_what_is_no_sample_costs_the_samples_alone() -> None:
    notes = Notebook()
    log = SampleLog(MemoryStore(), "r", 1, notes)
    log.write(5, [Sample("", "", "", "high", 0.0, 0, False)])  # type: ignore[arg-type]
    log.close()
    assert notes.reasons() == ["SamplesFailed"] and log.failures == 1
