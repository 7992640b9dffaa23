"""Recordings of steps that a tenant writes: small files that are gigabytes in memory, and rows of anything."""

import contextlib
import io
import json
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from fuzzing import EXAMPLES
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from patience import patient

from dapo_core.db import AttemptRow
from dapo_core.errors import StoreError
from dapo_core.naming import groups_key, manifest_key, spool_prefix, tokens_key
from dapo_core.objectstore import FolderStore, ObjectStore, open_store
from dapo_core.run.recording import GROUP_COLUMNS, PROMPT_CHARACTERS
from dapo_dashboard.charts import step_data
from dapo_dashboard.reads import bounded_parquet, group_columns, prompt_history, step_records
from dapo_dashboard.reads.bounded_parquet import Wanted
from dapo_dashboard.reads.parquet_rows import Unpacker, batches_of, rows_of
from dapo_dashboard.reads.prompt_history import PromptHistory
from dapo_dashboard.reads.step_records import StepRecord, read_responses, read_step, read_tokens, search_responses
from dapo_trainer.checkpoints.stored_checkpoints import CheckpointId, StoredCheckpoints
from dapo_trainer.groups.sample_log import read_samples
from dapo_trainer.spool import StoredTail

ATTEMPTS = [AttemptRow("r", 1, started_at=1.0)]
_FIFTH = CheckpointId(step=5, attempt=1)


def file_of(table: pa.Table, **options: Any) -> bytes:
    sink = io.BytesIO()
    parquet.write_table(table, sink, write_statistics=False, **options)
    return sink.getvalue()


def one_list(values: Any) -> pa.Table:
    return pa.table({"prompt_id": ["p"], "correct": pa.ListArray.from_arrays(pa.array([0, len(values)]), values)})


def same(text: str, times: int) -> Any:
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(times, np.int32)), pa.array([text]))


def bits() -> bytes:
    count = 40_000_000
    values = pa.Array.from_buffers(pa.bool_(), count, [None, pa.py_buffer(b"\xff" * (count // 8))])
    return file_of(one_list(values), compression="zstd")


def dictionary() -> bytes:
    return file_of(one_list(same("x" * 100_000, 30_000)), compression="zstd")


def texts() -> bytes:
    return file_of(one_list(same("x" * 1_000, 1_000_000)), store_schema=False, compression="zstd")


def mappings() -> bytes:
    items = pa.StructArray.from_arrays([pa.nulls(1_500_000)], ["a"])
    return file_of(one_list(items), compression="zstd")


def tensors() -> bytes:
    """A type of its own that counts as one value, and is millions."""
    zeros = pa.FixedSizeListArray.from_arrays(pa.array(np.zeros(30_000_000, np.int8)), 30_000_000)
    column = pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(pa.int8(), [30_000_000]), zeros)
    return file_of(pa.table({"prompt_id": ["p"], "correct": column}), compression="zstd")


def varint(number: int) -> bytes:
    number, out = number << 1, b""
    while number > 127:
        number, out = number >> 7, out + bytes([number & 127 | 128])
    return out + bytes([number])


def lie() -> bytes:
    """Its metadata says that it has one value."""
    count = 8_000_000
    data = file_of(one_list(same("x" * 100, count)), store_schema=False, compression="none", data_page_size=2**30)
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    said = varint(count)
    one = bytes([2 | 128, *[128] * (len(said) - 2), 0])
    data = data[:footer] + data[footer:].replace(said, one)
    assert parquet.ParquetFile(io.BytesIO(data)).metadata.row_group(0).column(1).num_values == 1
    return data


@pytest.mark.parametrize("bomb", [bits, dictionary, texts, mappings, tensors, lie])
def test_a11_a_small_recording_that_is_gigabytes_is_refused_without_them(bomb: Callable[[], bytes]) -> None:
    data = bomb()
    assert len(data) < 10_000
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(StoreError, match=r"Cannot read evil: it (takes|has)"):
        rows_of(data, "evil", Wanted(8_192))
    with pytest.raises(StoreError, match=r"Cannot read evil: it (takes|has)"):
        batches_of(data, "evil", Wanted(8_192))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # in KiB
    honest = file_of(pa.table({"prompt_id": ["p"], "correct": [[True]]}))
    assert rows_of(honest, "honest", Wanted(1)) == [{"prompt_id": "p", "correct": [True]}]


@pytest.mark.parametrize(
    "column",
    [
        pytest.param(pa.array([0], pa.timestamp("us", "No/Where")), id="time zone"),
        pytest.param(pa.array([2**62], pa.timestamp("us")), id="year"),
        pytest.param(pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], ["a", "a"]), id="two of one name"),
        pytest.param(pa.array([b"\xff"]).cast(pa.string(), safe=False), id="text"),
    ],
)
def test_a11_a_value_that_python_cannot_have_is_a_sentence(column: Any) -> None:
    with pytest.raises(StoreError, match="Cannot read evil"):
        rows_of(file_of(pa.table({"x": column})), "evil", Wanted(9))


def test_a11_a_large_object_is_not_read_to_its_end(tmp_path: Path) -> None:
    key = groups_key("r", 1, 1)
    open_store(tmp_path.as_uri()).put_bytes(key, b"")
    with (tmp_path / key).open("r+b") as file:
        file.truncate(2**40)
    with pytest.raises(StoreError, match=f"{key} has more than"):
        read_step(tmp_path.as_uri(), "r", 1, ATTEMPTS)


@pytest.mark.parametrize(
    ("key", "read"),
    [
        pytest.param(
            manifest_key("r", *_FIFTH), lambda store: StoredCheckpoints(store, "r").read(_FIFTH), id="a manifest"
        ),
        pytest.param(groups_key("r", 5, 1), lambda store: read_samples(store, groups_key("r", 5, 1)), id="samples"),
        pytest.param(
            f"{spool_prefix('r')}attempt-1-ab/{1:012d}.jsonl",
            lambda store: StoredTail(store, "r").fetch(Path("nowhere")),
            id="undelivered metrics",
        ),
    ],
)
def test_e11_an_object_of_any_size_is_not_read_to_its_end(
    key: str, read: Callable[[ObjectStore], object], tmp_path: Path
) -> None:
    store = open_store(tmp_path.as_uri())
    store.put_bytes(key, b"")
    with (tmp_path / key).open("r+b") as file:
        file.truncate(2**40)
    with pytest.raises(StoreError, match=f"{key} has more than"):
        read(store)


def test_a11_a_process_that_a_file_ends_is_replaced() -> None:
    unpacker = Unpacker()
    files = [file_of(pa.table({"prompt_id": [str(number)]})) for number in range(3)]
    started = []
    for honest in files:
        assert not unpacker.unpacked(honest, Wanted(1))[0]
        assert unpacker._process is not None
        unpacker._process.kill()
        unpacker._process.wait()
        started.append(unpacker._process)
    unpacker.close()
    unpacker.close()
    assert len({process.pid for process in started}) == 3 and unpacker._process is None


def test_a11_no_process_stays_when_its_server_is_gone() -> None:
    program = (
        "import os\nfrom dapo_dashboard.reads.parquet_rows import UNPACKER\nUNPACKER.start()\n"
        "print(UNPACKER._process.pid, flush=True)\nos.kill(os.getpid(), 9)"
    )
    said = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, check=False).stdout
    end = time.monotonic() + patient(60)
    while _lives(int(said)) and time.monotonic() < end:
        time.sleep(0.05)
    assert not _lives(int(said))


def _lives(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def test_a11_a_file_that_ended_the_process_does_not_end_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    unpacker, honest = Unpacker(), file_of(pa.table({"prompt_id": ["p"]}))
    monkeypatch.setattr(bounded_parquet, "__name__", "keyword")  # a program that ends before it answers
    assert unpacker.unpacked(honest, Wanted(1)) == (True, b"it takes too much memory or time")
    assert unpacker._process is None, "it was waited for"
    monkeypatch.undo()
    assert unpacker.unpacked(honest, Wanted(1))[0] and unpacker._process is None
    assert not unpacker.unpacked(file_of(pa.table({"prompt_id": ["q"]})), Wanted(1))[0]
    unpacker.close()


@pytest.mark.parametrize(
    ("limits", "wait", "ended_by"),
    [
        pytest.param("1, 0", "while True: pass", signal.SIGXCPU, id="a processor"),
        pytest.param("1, 1", "signal.pause()", signal.SIGALRM, id="the clock"),
    ],
)
def test_a11_a_file_that_takes_long_ends_the_process(limits: str, wait: str, ended_by: int) -> None:
    program = f"import signal\nfrom {bounded_parquet.__name__} import limit_time\nlimit_time({limits})\n{wait}"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == -ended_by


CELLS = st.one_of(
    *(
        st.lists(kind | st.none(), min_size=2, max_size=2)
        for kind in (
            st.text(max_size=9),
            st.integers(-(2**31), 2**31),
            st.floats(),
            st.booleans(),
            st.binary(max_size=4),
            st.lists(st.booleans() | st.none(), max_size=3),
            st.lists(st.text(max_size=3), max_size=2),
        )
    )
)


def anything(columns: dict[str, list[Any]]) -> bytes:
    return file_of(pa.table(columns))


@given(st.binary(max_size=200) | st.dictionaries(st.sampled_from([*GROUP_COLUMNS, "x"]), CELLS).map(anything))
@settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=EXAMPLES)
def test_a11_any_recording_of_groups_is_one_or_a_sentence(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        url = Path(folder).as_uri()
        open_store(url).put_bytes(groups_key("r", 7, 1), data)
        history = PromptHistory(url, "r")
        try:
            history.update(ATTEMPTS, wait_seconds=60.0)
        except StoreError as error:
            assert groups_key("r", 7, 1) in str(error)
        else:
            assert not history.missing and len(history.summary()) <= 2
        try:
            step = read_step(url, "r", 7, ATTEMPTS)
        except StoreError as error:
            assert groups_key("r", 7, 1) in str(error)
        else:
            assert step is not None


GROUP = {
    "uid": "u", "prompt_id": "p", "source": "s", "prompt": "1+1", "ground_truth": "2", "fate": "trained",
    "rewards": [1.0], "lengths": [3], "correct": [True], "advantages": [0.5], "submitted_at": 1.0, "finished_at": 2.0,
    "decided_at": 3.0, "tokens_recorded": True,
}  # fmt: skip
RESPONSE = {
    "uid": "u", "number": 0, "prompt": "1+1", "response": "2", "ground_truth": "2", "source": "s", "reward": 1.0,
    "advantage": None, "correct": True, "truncated": False, "check": "{}", "token_ids": [1], "pieces": ["2"],
    "rollout_log_probs": [-0.1], "trainer_log_probs": [-0.2], "weights": [1.0], "entropies": [0.3],
    "has_loss": [True], "clipped": [0],
}  # fmt: skip
ONE = st.one_of(
    st.none(), st.text(max_size=9), st.integers(-(2**63), 2**63 - 1), st.floats(), st.booleans(), st.binary(max_size=4),
    st.lists(st.floats() | st.none(), max_size=3), st.lists(st.text(max_size=3) | st.none(), max_size=3),
    st.lists(st.integers(-(2**31), 2**31) | st.booleans(), max_size=3).map(lambda cells: [int(one) for one in cells]),
)  # fmt: skip


def odd(usual: dict[str, Any]) -> st.SearchStrategy[bytes]:
    """The usual row, or two of it in one group of rows, with anything in a few of its columns."""
    changes = st.dictionaries(st.sampled_from(sorted(usual)), ONE, max_size=3)
    return st.builds(lambda new, rows: anything({name: [one] * rows for name, one in {**usual, **new}.items()}),
                     changes, st.sampled_from([0, 1, 1, 1, 2]))  # fmt: skip


@given(odd(GROUP), odd(RESPONSE))
@settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=EXAMPLES)
def test_a11_any_recording_of_a_step_is_drawn_or_a_sentence(groups: bytes, responses: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store, url = open_store(Path(folder).as_uri()), Path(folder).as_uri()
        store.put_bytes(groups_key("r", 7, 1), groups)
        store.put_bytes(tokens_key("r", 7, 1), responses)
        with contextlib.suppress(StoreError):
            step = read_step(url, "r", 7, ATTEMPTS)
            assert step is not None
            json.dumps([step_data.groups(step.groups, "u"), step_data.legend(step.groups)], allow_nan=False)
            assert all(group.solved is None or 0 <= group.solved <= 1 for group in step.groups)
        record = StepRecord("r", 7, 1, ())
        with contextlib.suppress(StoreError):
            found = search_responses(url, "r", [(7, 1)], lambda response: response.reward < 1e9)[0]
            assert {one.step for one in found} <= {7}
        with contextlib.suppress(StoreError):
            for place in read_responses(url, record, "u"):
                json.dumps(step_data.tokens(read_tokens(url, record, place)), allow_nan=False)


def test_a11_a_usual_recording_is_drawn(tmp_path: Path) -> None:
    store, url = open_store(tmp_path.as_uri()), tmp_path.as_uri()
    store.put_bytes(groups_key("r", 7, 1), anything({name: [one] for name, one in GROUP.items()}))
    store.put_bytes(tokens_key("r", 7, 1), anything({name: [one] for name, one in RESPONSE.items()}))
    step = read_step(url, "r", 7, ATTEMPTS)
    assert step is not None and step_data.groups(step.groups, None)[0]["y"] == 1.0
    assert step_data.tokens(read_tokens(url, step, 0))["pieces"] == ["2"]


def test_e5_a_run_of_very_many_objects_is_not_listed_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prompt_history, "MAX_LISTED", 5)
    for number in range(6):
        open_store(tmp_path.as_uri()).put_bytes(f"r/samples/{number}", b"")
    with pytest.raises(StoreError, match="r/samples/ has more than 5 objects"):
        PromptHistory(tmp_path.as_uri(), "r").update(ATTEMPTS)


def test_e5_a_step_is_looked_for_in_few_attempts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is a request, and a tenant's rows may say that there were ten thousand."""
    asked = []
    get_bytes = FolderStore.get_bytes
    monkeypatch.setattr(FolderStore, "get_bytes", lambda store, key: asked.append(key) or get_bytes(store, key))
    attempts = [AttemptRow("r", number, started_at=1.0) for number in range(1, 10_000)]
    assert read_step(tmp_path.as_uri(), "r", 7, attempts) is None
    assert len(asked) == step_records.MAX_ATTEMPTS and asked[0] == groups_key("r", 7, 9_999)


def test_a11_long_prompts_are_cut_and_only_so_many_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_columns, "MAX_CHARACTERS", 3 * PROMPT_CHARACTERS)
    count = 10
    table = pa.table(
        {
            "prompt_id": [str(number) for number in range(count)],
            "source": ["s" * 100_000] * count,
            "prompt": ["x" * 100_000] * count,
            "fate": ["f" * 100_000] * count,
            "correct": [[True]] * count,
            "tokens_recorded": [False] * count,
        }
    )
    open_store(tmp_path.as_uri()).put_bytes(groups_key("r", 7, 1), file_of(table))
    history = PromptHistory(tmp_path.as_uri(), "r")
    history.update(ATTEMPTS, wait_seconds=60.0)
    assert [len(text) for text in history.summary()["text"]] == [PROMPT_CHARACTERS] * 3
