"""Samples of a step for people to read: Parquet in the object store, indexed by a row of the metadata store.

pyarrow is imported when the first samples are written: a run that logs none does not wait for it.
"""

import io
import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from queue import Empty, Full, Queue
from typing import Any, Final, Protocol

from dapo_core.db import EventType
from dapo_core.naming import groups_key, samples_key, tokens_key
from dapo_core.objectstore import ObjectStore
from dapo_core.run.entries import Sample
from dapo_core.run.recording import RecordedGroup, RecordedResponse
from dapo_trainer.groups.group_records import groups_parquet, responses_parquet

log = logging.getLogger(__name__)

MAX_ROWS: Final = 256
MAX_CHARACTERS: Final = 100_000  # of one text; a response of 20,480 tokens has some 80,000
MAX_TOTAL: Final = 16_000_000  # characters of one step's samples: 200 of the paper's longest responses
_CUT: Final = " [...]"


class SampleJournal(Protocol):
    """Where the index of samples goes: `dapo_trainer.spool.Spool`."""

    def samples(self, step: int, key: str, rows: int, size_bytes: int) -> None: ...

    def event(self, reason: str, message: str, *, type: EventType = "Normal", step: int | None = None) -> None: ...


def to_parquet(samples: Sequence[Sample]) -> bytes:
    """One row for each sample, one column for each field of `Sample`; texts are cut to `MAX_CHARACTERS`."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns: Mapping[str, Any] = {
        "prompt": pa.array([_cut(sample.prompt) for sample in samples], pa.string()),
        "response": pa.array([_cut(sample.response) for sample in samples], pa.string()),
        "ground_truth": pa.array([_cut(sample.ground_truth) for sample in samples], pa.string()),
        "reward": pa.array([sample.reward for sample in samples], pa.float64()),
        "accuracy": pa.array([sample.accuracy for sample in samples], pa.float64()),
        "length": pa.array([sample.length for sample in samples], pa.int64()),
        "truncated": pa.array([sample.truncated for sample in samples], pa.bool_()),
        "details": pa.array([_cut(sample.details) for sample in samples], pa.string()),
    }
    sink = io.BytesIO()
    pq.write_table(pa.table(columns), sink, compression="zstd")
    return sink.getvalue()


def read_samples(store: ObjectStore, key: str) -> list[Sample]:
    """The samples stored under `key`. Raises StoreError."""
    import pyarrow.parquet as pq

    table = pq.read_table(io.BytesIO(store.get_bytes(key)))
    return [Sample.of_row(row) for row in table.to_pylist()]


class SampleLog:
    """Writes the samples of a step in the background. Nothing raises; samples that the store refuses are dropped."""

    def __init__(self, store: ObjectStore, run_id: str, attempt: int, journal: SampleJournal) -> None:
        self._store = store
        self._run_id = run_id
        self._attempt = attempt
        self._journal = journal
        self._queue: Queue[tuple[int, str, Callable[[], None]]] = Queue(maxsize=8)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="dapo-samples", daemon=True)
        self._thread.start()
        self.failures = 0

    def write(self, step: int, samples: Sequence[Sample]) -> None:
        """Queue the samples of `step`, the first of them up to `MAX_ROWS` and `MAX_TOTAL`."""
        kept = bounded(samples)
        self._put(step, "samples", lambda: self._store_samples(step, kept))

    def write_groups(
        self, step: int, groups: Sequence[RecordedGroup], responses: Callable[[], Sequence[RecordedResponse]]
    ) -> None:
        """Queue the groups of `step`, and the responses that are recorded token by token."""
        self._put(step, "groups", lambda: self._store_groups(step, groups, responses))

    def _put(self, step: int, what: str, store: Callable[[], None]) -> None:
        try:
            self._queue.put_nowait((step, what, store))
        except Full:
            self._fail(step, what, "those of earlier steps are not written yet")

    def close(self, timeout_seconds: float = 10.0) -> None:
        """Write what is queued, for at most `timeout_seconds`, and end."""
        self._closing.set()
        self._thread.join(timeout_seconds)

    def _run(self) -> None:
        while True:
            try:
                step, what, store = self._queue.get(timeout=0.2)
            except Empty:
                if self._closing.is_set():
                    return
                continue
            try:
                store()
            except Exception as error:  # whatever it is, training continues
                self._fail(step, what, str(error))

    def _store_samples(self, step: int, samples: Sequence[Sample]) -> None:
        data, key = to_parquet(samples), samples_key(self._run_id, step, self._attempt)
        self._store.put_bytes(key, data)
        self._journal.samples(step, key, len(samples), len(data))

    def _store_groups(
        self, step: int, groups: Sequence[RecordedGroup], responses: Callable[[], Sequence[RecordedResponse]]
    ) -> None:
        # First what the groups refer to.
        if recorded := responses():
            self._store.put_bytes(tokens_key(self._run_id, step, self._attempt), responses_parquet(recorded))
        self._store.put_bytes(groups_key(self._run_id, step, self._attempt), groups_parquet(groups))

    def _fail(self, step: int, what: str, why: str) -> None:
        self.failures += 1
        message = f"The {what} of step {step} were not written: {why}"
        log.warning(message)
        self._journal.event("SamplesFailed", message, type="Warning", step=step)


def choose(validation: Sequence[Sample], training: Sequence[Sample]) -> list[Sample]:
    """At most `MAX_ROWS` samples of a step: half of the places for each kind, or what the other leaves free.

    Some of every prompt rather than all of a few. Sorted by prompt: validation prompts are the same at every step.
    """
    of_training = min(len(training), max(MAX_ROWS // 2, MAX_ROWS - len(validation)))
    of_validation = min(len(validation), MAX_ROWS - of_training)
    chosen = _of_every_prompt(validation, of_validation) + _of_every_prompt(training, of_training)
    return sorted(chosen, key=lambda sample: sample.prompt)


def _of_every_prompt(samples: Sequence[Sample], count: int) -> list[Sample]:
    """The first of each prompt, then the second of each, until there are `count`."""
    before: Counter[str] = Counter()
    ranked: list[tuple[int, Sample]] = []
    for sample in samples:
        ranked.append((before[sample.prompt], sample))
        before[sample.prompt] += 1
    return [sample for _, sample in sorted(ranked, key=lambda place: place[0])[:count]]


def bounded(samples: Sequence[Sample]) -> list[Sample]:
    """The first samples, as many as are kept for a step; at least one."""
    kept: list[Sample] = []
    total = 0
    for sample in samples[:MAX_ROWS]:
        total += sum(min(len(text), MAX_CHARACTERS) for text in (sample.prompt, sample.response, sample.ground_truth))
        if kept and total > MAX_TOTAL:
            break
        kept.append(sample)
    return kept


def _cut(text: str) -> str:
    return text if len(text) <= MAX_CHARACTERS else text[:MAX_CHARACTERS] + _CUT
