"""What the table of runs shows, read in few queries: of what is slow to read, only what is new."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from dapo_core.db import ENDED_STATES, MetadataReader, RunTableRow
from dapo_core.run import metrics
from dapo_core.run.annotations import NONE, RunAnnotations, by_run
from dapo_core.run.metrics import HEADLINES
from dapo_core.run.progress import PACE_METRICS, PACE_STEPS, progress_of
from dapo_core.run.validations import ValidationResult
from dapo_dashboard.reads.cached_reader import CachedReader, Reading
from dapo_dashboard.reads.spec_reads import with_new

T = TypeVar("T")
SPARKLINE: Final = metrics.REWARD_GENERATED
MAX_RUNS: Final = 5_000
SPARKLINE_BUCKETS: Final = 32
# A curve in a cell is 32 points out of thousands of steps: it need not change every second.
SPARKLINE_SECONDS: Final = 15.0
# Nor need the time left of all runs.
LEFT_SECONDS: Final = 5.0
# A validation takes a while, and comes every tenth step or so.
VALIDATIONS_SECONDS: Final = 5.0
# What was not read of the specs, by which others wait no longer than `spec_reads` says.
SPECS_SECONDS: Final = 5.0
# Who says something sees it at once, others a moment later.
ANNOTATIONS_SECONDS: Final = 3.0
ANNOTATIONS_KEY: Final = ("annotations",)
# Of all runs together, and of a note what the table shows and searches.
MAX_ANNOTATIONS: Final = 20_000
NOTE_CHARACTERS: Final = 1_000
Values = Sequence[float | None]
SecondsLeft = Mapping[str, float]
"""By run, of those for which it is known."""
Results = Mapping[str, ValidationResult]
"""By run, of its first validation set."""


@dataclass(frozen=True)
class EndedValues(Generic[T]):
    """What was read of runs that ended, by run; `until` is the time of the run's last step then."""

    values: Mapping[str, T] = field(default_factory=dict)
    until: Mapping[str, float | None] = field(default_factory=dict)


@dataclass(frozen=True)
class Beside:
    """What is read of the runs beside their rows, by run."""

    left: SecondsLeft = field(default_factory=dict)
    results: Results = field(default_factory=dict)
    sparklines: Mapping[str, Values] = field(default_factory=dict)
    accelerators: Mapping[str, int] = field(default_factory=dict)
    said: Mapping[str, RunAnnotations] = field(default_factory=dict)


def read_rows(reader: CachedReader) -> Reading[list[RunTableRow]]:
    """All runs of the database, newest first. Raises NothingReadError."""
    return reader.read(("runs",), lambda db, _: db.run_table(HEADLINES, limit=MAX_RUNS))


def read_accelerators(reader: CachedReader, rows: Sequence[RunTableRow]) -> Mapping[str, int]:
    """How many each run asks for; this does not change during a run. `rows` are those of all runs."""

    def load(db: MetadataReader, last: Mapping[str, int] | None) -> Mapping[str, int]:
        return with_new(last or {}, rows, db.gpus, 0)

    return reader.read(("gpus",), load, max_age=SPECS_SECONDS).value


def read_annotations(reader: CachedReader) -> Mapping[str, RunAnnotations]:
    """What people say of the runs, of all that they say anything of; only the beginning of long notes."""

    def load(db: MetadataReader, _: Mapping[str, RunAnnotations] | None) -> Mapping[str, RunAnnotations]:
        return by_run(db.annotations(limit=MAX_ANNOTATIONS, longest=NOTE_CHARACTERS))

    return reader.read(ANNOTATIONS_KEY, load, max_age=ANNOTATIONS_SECONDS).value


def read_annotations_of(reader: CachedReader, run_id: str) -> RunAnnotations:
    """What people say of one run, with the whole note."""

    def load(db: MetadataReader, _: RunAnnotations | None) -> RunAnnotations:
        return by_run(db.annotations([run_id])).get(run_id, NONE)

    return reader.read((*ANNOTATIONS_KEY, run_id), load, max_age=ANNOTATIONS_SECONDS).value


def forget_annotations(reader: CachedReader, run_ids: Iterable[str]) -> None:
    """Read again what people say of the runs: it was changed."""
    reader.forget(ANNOTATIONS_KEY)
    for run_id in run_ids:
        reader.forget((*ANNOTATIONS_KEY, run_id))


def read_seconds_left(reader: CachedReader, rows: Sequence[RunTableRow]) -> SecondsLeft:
    """The time left of the runs that have not ended, where it is known. `rows` are those of all runs."""
    alive = [row.run_id for row in rows if row.state not in ENDED_STATES]

    def load(db: MetadataReader, _: SecondsLeft | None) -> SecondsLeft:
        progress = db.progress(alive, history=PACE_METRICS, first_steps=0, last_steps=PACE_STEPS) if alive else {}
        left = {run_id: progress_of(run).eta_seconds for run_id, run in progress.items()}
        return {run_id: float(seconds) for run_id, seconds in left.items() if seconds is not None}

    return reader.read(("seconds left",), load, max_age=LEFT_SECONDS).value


def read_sparklines(reader: CachedReader, rows: Sequence[RunTableRow]) -> Mapping[str, Values]:
    """The curve of each run. `rows` are those of all runs."""

    def load(db: MetadataReader, run_ids: Sequence[str]) -> Mapping[str, Values]:
        return db.sparklines(run_ids, SPARKLINE, SPARKLINE_BUCKETS)

    return _of_all(reader, rows, "sparklines", load, SPARKLINE_SECONDS)


def read_results(reader: CachedReader, rows: Sequence[RunTableRow]) -> Results:
    """The results of validation of the runs that have any. `rows` are those of all runs."""

    def load(db: MetadataReader, run_ids: Sequence[str]) -> Results:
        return {run_id: results[0] for run_id, results in db.validations(run_ids).items()}

    return _of_all(reader, rows, "validations", load, VALIDATIONS_SECONDS)


def _of_all(
    reader: CachedReader,
    rows: Sequence[RunTableRow],
    what: str,
    load: Callable[[MetadataReader, Sequence[str]], Mapping[str, T]],
    max_age: float,
) -> Mapping[str, T]:
    """Of runs that ended it is read once, and again if they were resumed; of the others every `max_age` seconds."""
    ended = [row for row in rows if row.state in ENDED_STATES]
    alive = [row.run_id for row in rows if row.state not in ENDED_STATES]

    def more(db: MetadataReader, last: EndedValues[T] | None) -> EndedValues[T]:
        known = last or EndedValues()
        new = [row for row in ended if known.until.get(row.run_id, -1.0) != row.updated_at]
        if not new:
            return known
        read = load(db, [row.run_id for row in new])
        return EndedValues({**known.values, **read}, {**known.until, **{row.run_id: row.updated_at for row in new}})

    old = reader.read((what, "ended"), more).value.values
    new = reader.read((what, "alive"), lambda db, _: load(db, alive) if alive else {}, max_age=max_age)
    return {**old, **new.value}


def read_beside(reader: CachedReader, rows: Sequence[RunTableRow]) -> Beside:
    """All that the table shows beside the rows, which are those of all runs."""
    return Beside(
        read_seconds_left(reader, rows),
        read_results(reader, rows),
        read_sparklines(reader, rows),
        read_accelerators(reader, rows),
        read_annotations(reader),
    )
