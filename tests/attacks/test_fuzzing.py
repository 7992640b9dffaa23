"""Whatever a tenant writes into files, manifests, samples and rows: an error with a sentence, or values that others can
use. `DAPO_FUZZ_EXAMPLES` sets how many inputs are tried."""

import contextlib
import io
import itertools
import json
import math
import re
import tempfile
import zlib
from collections.abc import Iterator
from email import message_from_bytes
from email.policy import default
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from fuzzing import JSON, NUMBERS, RAW, TEXT, changed, encoded, fuzzed
from hypothesis import example, given
from hypothesis import strategies as st

from dapo_core.db import (
    AttemptRow,
    MetadataWriter,
    Point,
    RejectedError,
    RunRow,
    SamplesRow,
    WriteBatch,
    open_writer,
    upgrade,
)
from dapo_core.errors import CheckpointError, SpecError, StoreError
from dapo_core.naming import ROLES
from dapo_core.notify.messages import Bulletin
from dapo_core.objectstore import ObjectInfo, open_store
from dapo_core.run.annotations import MAX_NOTE, MAX_TAG, AnnotationError, note_of, tag_of
from dapo_core.run.checkpoint import Manifest, parse_manifest
from dapo_core.run.entries import Sample
from dapo_core.run.fault_plan import MAX_FAULTS, FaultKind, fault_plan
from dapo_core.run.formatting import printable
from dapo_core.run.last_words import LastWords
from dapo_core.run.redaction import without_secrets
from dapo_core.run.store_rows import Notice
from dapo_dashboard.reads.prompt_history import continued
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
@example(encoded({**HEAD, "ts": 10**400}))
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


@given(TEXT, st.lists(TEXT, max_size=30))
@fuzzed
def test_e5_any_note_or_tag_is_short_text_or_refused(text: str, existing: list[str]) -> None:
    with contextlib.suppress(AnnotationError):
        tag = tag_of(text, existing)
        assert 0 < len(tag.encode()) and len(tag) <= MAX_TAG and tag == printable(tag)
    with contextlib.suppress(AnnotationError):
        note = note_of(text * 200)
        assert len(note) <= MAX_NOTE and note == printable(note)


TIMES = st.floats(0, 253_402_300_799)
NOTICES = st.builds(
    Notice, TEXT, TEXT, TEXT, TEXT, st.sampled_from(["raised", "cleared"]), TEXT.map(lambda text: text * 20), TEXT,
    TIMES, st.none() | st.integers(0, 2**53), st.none() | TIMES, TIMES,
)  # fmt: skip
HEADERS = {"subject", "from", "to", "date", "message-id", "auto-submitted", "mime-version", "content-type",
           "content-transfer-encoding"}  # fmt: skip


@given(st.lists(NOTICES, min_size=1, max_size=3))
@fuzzed
def test_e9_any_alert_is_a_message_with_our_headers_and_links_alone(notices: list[Notice]) -> None:
    """A tenant writes the run, the job, the guard and the message of an alert: no header, recipient, link or mention
    of its own comes out of them."""
    bulletin = Bulletin(notices, "https://dapo.example.org")
    mail = message_from_bytes(bulletin.email("dapo@example.org", ["a@example.org"], 1.0).as_bytes(), policy=default)
    assert {name.lower() for name in mail.keys()} <= HEADERS and len(mail.keys()) == len(set(mail.keys()))
    assert mail["To"] == "a@example.org" and str(mail["Subject"]).startswith("[DAPO] ")
    slack = bulletin.slack()
    for block in slack["blocks"]:
        text = block["text"]["text"]
        assert len(text) <= 3000
        for link in re.findall("<([^>]*)", text):
            assert link.startswith("https://dapo.example.org/run?run=")
    assert "<" not in slack["text"]
    json.dumps([slack, bulletin.json()]).encode()


@given(st.integers(), st.floats(), st.floats(), st.lists(TEXT | st.sampled_from([*FaultKind]), max_size=3),
       st.lists(TEXT | st.sampled_from(ROLES), max_size=3))  # fmt: skip
@fuzzed
def test_e3_any_plan_of_faults_is_one_or_names_the_option(
    seed: int, rate: float, minutes: float, kinds: list[str], roles: list[str]
) -> None:
    try:
        plan = fault_plan(seed, rate, minutes, kinds, roles)
    except SpecError as error:
        assert "--" in str(error)
        return
    assert 1 <= len(plan) <= MAX_FAULTS and all(0 <= fault.at <= minutes * 60 for fault in plan)
    assert {fault.role for fault in plan} <= {None, *roles}


@given(st.lists(st.tuples(st.integers(0, 2**53), st.integers(0, 9_999)), max_size=20),
       st.lists(st.tuples(st.integers(0, 9_999), st.none() | st.integers(0, 2**53)), max_size=20))  # fmt: skip
@fuzzed
def test_a11_any_attempts_continue_each_step_once(
    recorded: list[tuple[int, int]], attempts: list[tuple[int, int | None]]
) -> None:
    rows = [AttemptRow("r", number, 1.0, step_from=step) for number, step in attempts]
    steps = [step for step, _ in continued(recorded, rows)]
    assert steps == sorted(set(steps)) and set(continued(recorded, rows)) <= set(recorded)
