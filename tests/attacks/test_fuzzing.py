"""Whatever a tenant writes into files, manifests, samples and rows: an error with a sentence, or values that others can
use. `DAPO_FUZZ_EXAMPLES` sets how many inputs are tried."""

import io
import itertools
import json
import math
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from fuzzing import JSON, NUMBERS, RAW, TEXT, changed, encoded, fuzzed
from hypothesis import given
from hypothesis import strategies as st

from dapo_core.db import MetadataWriter, Point, RejectedError, RunRow, SamplesRow, WriteBatch, open_writer, upgrade
from dapo_core.errors import CheckpointError, StoreError
from dapo_core.objectstore import ObjectInfo, open_store
from dapo_core.run.checkpoint import Manifest, parse_manifest
from dapo_core.run.entries import Sample
from dapo_core.run.last_words import LastWords
from dapo_core.run.redaction import without_secrets
from dapo_dashboard.reads.stored_samples import read_samples
from dapo_operator.kube import nesting
from dapo_trainer.data import sources
from dapo_trainer.spool.background_writer import _line
from dapo_trainer.spool.records import Record, batch_of, decode, step_body
from dapo_trainer.spool.segments import read_cursor

SHA = "0" * 64
MANIFEST: dict[str, Any] = {
    "version": 4,
    "run_id": "r",
    "step": 1,
    "attempt": 1,
    "spec_digest": "d",
    "created_at": 1.0,
    "metrics": {"acc": 0.5},
    "files": [{"path": "actor/x.pt", "size": 1, "sha256": SHA}],
}
HEAD: dict[str, Any] = {"seq": 1, "kind": "step", "ts": 1.0, "attempt": 1, "step": 1, "values": {"loss": 1.0}}
FILES = changed(MANIFEST["files"][0]).map(lambda entry: {**MANIFEST, "files": [entry]})


@pytest.mark.parametrize(
    "bad",
    [
        {"size": 1e999},
        {"size": -1},
        {"path": "../../etc/passwd"},
        {"path": "a\x1b[2J"},
        {"sha256": "x"},
    ],
    ids=json.dumps,
)
def test_d_a_file_of_a_manifest_that_is_none(bad: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match="the-key"):
        parse_manifest(encoded({**MANIFEST, "files": [{**MANIFEST["files"][0], **bad}]}), "the-key")


@pytest.mark.parametrize(
    "bad",
    [{"step": "1"}, {"step": -1}, {"step": 2**70}, {"created_at": "x"}, {"created_at": 1e999}, {"metrics": "x"},
     {"metrics": []}, {"metrics": {"a": "b"}}, {"attempt": True}, {"run_id": 7}, {"state": []}, {"state": "deleting"}],
    ids=json.dumps,
)  # fmt: skip
def test_d_a_manifest_of_wrong_values(bad: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match="the-key is corrupt"):
        parse_manifest(encoded({**MANIFEST, **bad}), "the-key")


def test_d_a_manifest_nested_too_deeply() -> None:
    with pytest.raises(CheckpointError, match="the-key is corrupt"):
        parse_manifest(b'{"version": 4, "files": ' + b"[" * 5000, "the-key")


@given(st.one_of(RAW, changed(MANIFEST).map(encoded), FILES.map(encoded)))
@fuzzed
def test_d_any_manifest_is_one_or_an_error_of_its_own(data: bytes) -> None:
    try:
        manifest = parse_manifest(data, "key")
    except CheckpointError as error:
        assert "key" in str(error)
        return
    assert isinstance(manifest, Manifest) and 0 <= manifest.step < 2**53 and manifest.size_bytes >= 0
    row = manifest.row("u")
    assert all(math.isfinite(value) for value in row.metrics.values())
    assert parse_manifest(manifest.to_bytes(), "key").files == manifest.files


@pytest.mark.parametrize("key", ["../out/x", "a/../../out/x", "/tmp/x", ""])
def test_a21_a_key_of_a_store_makes_no_folder_outside_the_copy(key: str, tmp_path: Path) -> None:
    store = open_store((tmp_path / "store").as_uri())
    with pytest.raises(StoreError, match="not a relative path"):
        sources._copy(store, tmp_path / "copy", ObjectInfo(key, 1, 1.0))
    assert not (tmp_path / "out").exists()


def line(text: bytes) -> bytes:
    """A line whose checksum is right, whatever it says."""
    return b"%08x %s\n" % (zlib.crc32(text), text)


@given(st.one_of(RAW, changed(HEAD).map(encoded)))
@fuzzed
def test_d_any_line_of_a_spool_is_a_record_or_none(text: bytes) -> None:
    decode(text)
    record = decode(line(text))
    if record is None:
        return
    assert type(record.seq) is int and math.isfinite(record.ts)
    # The sender leaves out a record that raises one of these, and tells its owner.
    try:
        batch_of("r", [record])
    except (TypeError, KeyError, AttributeError):
        pass


@given(st.dictionaries(TEXT, st.one_of(NUMBERS, TEXT, JSON), max_size=4))
@fuzzed
def test_d_any_values_of_a_step_are_written_or_left_out(values: dict[str, Any]) -> None:
    """10**400 among them stopped the delivery of all later records."""
    record = Record(1, "step", 1.0, 1, 1, {"values": values})
    written = _line(record, 1)
    if written is not None:
        read = decode(written)
        assert read is not None and read.body == step_body(values)


@given(RAW)
@fuzzed
def test_d_any_cursor_is_a_number(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "cursor.json").write_bytes(data)
        (Path(folder) / "cursor").write_bytes(data)
        assert isinstance(read_cursor(Path(folder)), int)


@given(RAW)
@fuzzed
def test_a01_any_termination_message_is_read(data: bytes) -> None:
    words = LastWords.parse(data)
    if words is not None:
        json.dumps([words.reason, words.message, words.step]).encode()


@given(RAW)
@fuzzed
def test_a02_any_bytes_are_pruned_and_parsed_or_refused(data: bytes) -> None:
    try:
        nesting.parse(data)
    except ValueError:
        pass


@given(JSON)
@fuzzed
def test_a21_any_spec_is_redacted(value: Any) -> None:
    assert type(without_secrets(value)) is type(value)


COLUMNS = st.sampled_from(["prompt", "response", "answer", "reward", "accuracy", "step", "other"])
CELLS = st.one_of(
    st.lists(st.integers(-(2**63), 2**63 - 1) | st.none(), min_size=2, max_size=2),
    st.lists(st.floats() | st.none(), min_size=2, max_size=2),
    st.lists(st.text(max_size=20) | st.none(), min_size=2, max_size=2),
    st.lists(st.lists(st.text(max_size=3), max_size=2), min_size=2, max_size=2),
    st.lists(st.binary(max_size=9), min_size=2, max_size=2),
)
_KEYS = itertools.count()


def _table(columns: dict[str, list[Any]]) -> bytes:
    sink = io.BytesIO()
    parquet.write_table(pa.table(columns), sink)
    return sink.getvalue()


@given(st.one_of(RAW, st.dictionaries(COLUMNS, CELLS, max_size=7).map(_table)))
@fuzzed
def test_a11_any_file_of_samples_is_samples_or_a_sentence(data: bytes) -> None:
    key = f"r/samples/{next(_KEYS)}.parquet"
    with tempfile.TemporaryDirectory() as folder:
        open_store(Path(folder).as_uri()).put_bytes(key, data)
        try:
            samples = read_samples(Path(folder).as_uri(), SamplesRow("r", 1, 1, key, 1, 1, 1.0))
        except StoreError as error:
            assert key in str(error)
            return
    for sample in samples:
        assert isinstance(sample, Sample)
        assert isinstance(sample.is_right, bool)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MetadataWriter]:
    url = f"sqlite:///{tmp_path_factory.mktemp('store') / 'dapo.db'}"
    upgrade(url)
    writer = open_writer(url)
    writer.create_run(RunRow("r", "r", created_at=1.0))
    yield writer
    writer.close()


@given(TEXT, NUMBERS, NUMBERS, NUMBERS)
@fuzzed
def test_a03_any_point_is_written_or_rejected(store: MetadataWriter, name: str, step: Any, ts: Any, value: Any) -> None:
    """Never another error, which the sender would retry for ever."""
    try:
        store.write("r", WriteBatch([Point(name, step, 1, ts, value, None)]))
    except RejectedError as error:
        str(error).encode(errors="replace")


def test_d_a_batch_of_too_many_names_is_rejected_and_so_split(store: MetadataWriter) -> None:
    with pytest.raises(RejectedError, match="points of 70000 metrics"):
        store.write("r", WriteBatch([Point.of(f"m{number}", 1, 1, 1.0, 1.0) for number in range(70_000)]))
