"""From what a user names to a run's checkpoints, wherever they are stored."""

import logging
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from dapo_core.cli.runs import find_run
from dapo_core.db import (
    CheckpointRow,
    MetadataReader,
    MetadataWriter,
    RunRow,
    open_reader,
    open_writer,
)
from dapo_core.db.recorder import Recorder
from dapo_core.errors import Problem, SpecError
from dapo_core.naming import RUN_ID, checkpoints_prefix, samples_prefix, spool_prefix
from dapo_core.objectstore import ObjectStore, open_store
from dapo_core.run.checkpoint import Retention
from dapo_core.run.home import Home, NoRunsError
from dapo_core.run.log_keys import logs_prefix
from dapo_trainer.checkpoints.checkpoint_store import CheckpointStore
from dapo_trainer.checkpoints.journal import Journal, NullJournal
from dapo_trainer.checkpoints.restore import parse_reference
from dapo_trainer.checkpoints.stored_checkpoints import Leftover, old_samples

_OF_A_RUN: Final = re.compile(r"(checkpoints|samples)/step-\d{6,}|logs/attempt-\d+/")
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RunCheckpoints:
    """A run's checkpoints, the step and the attempt that the user named if any, and the run's row if it is on
    record."""

    checkpoints: CheckpointStore
    step: int | None
    run: RunRow | None
    attempt: int | None = None

    @property
    def retention(self) -> Retention:
        """The retention rule of the run's job."""
        rule = _spec(self.run).get("checkpoints", {})
        return Retention(rule.get("keepLast", 2), rule.get("keepBest", 0), rule.get("bestMetric"))


def open_record(home: Home) -> MetadataReader | None:
    """The metadata store of the home's runs; None when no run has been recorded yet."""
    try:
        return open_reader(home.recorded_url)
    except NoRunsError:
        return None


def find_checkpoints(name: str, home: Home) -> RunCheckpoints:
    """`RUN`, `RUN@STEP`, a job's name (its latest run) or a checkpoint's URI.

    Raises UnknownRunError with the nearest names, CheckpointError for a URI that is not a checkpoint's, StoreError.
    """
    source = parse_reference(name)
    reader = open_record(home)
    if source.root is not None or home.store is not None or reader is None:
        # The store is named: the run need not be on record.
        run = _recorded(reader, source.run_id)
        found = _open(source.root or home.store_url, source.run_id, source.step, run, home)
        return replace(found, attempt=source.attempt)
    run = find_run(reader, source.run_id)
    return _open(run.objects_url or home.store_url, run.run_id, source.step, run, home)


def find_leftovers(
    run: str | None, home: Home, grace_seconds: float, unknown_runs: bool, samples_seconds: float | None = None
) -> list[tuple[CheckpointStore, Sequence[Leftover]]]:
    """What was not changed for `grace_seconds` and no checkpoint needs, of one run or of all in the store.

    With `samples_seconds`, also samples that were stored longer ago. With `unknown_runs`, also checkpoints and samples
    of runs that are not on record; `run` is then the ID of one of them. Raises SpecError unless the metadata store is
    known to have every run of the store.
    """
    if run is not None and not unknown_runs:
        checkpoints = find_checkpoints(run, home).checkpoints
        return [(checkpoints, _leftovers(checkpoints, grace_seconds, samples_seconds))]
    store, reader = open_store(home.store_url), open_record(home)
    known = {} if reader is None else {row.run_id: row for row in reader.runs()}
    stored = list(store.folders()) if run is None else [run]
    unknown = {run_id for run_id in stored if unknown_runs and run_id not in known and _is_a_runs(store, run_id)}
    if unknown_runs:
        _check_complete(reader, store, known)
        if run is not None and run not in unknown:
            why = "it is on record" if run in known else "it is not the folder of a run in this store"
            raise SpecError([Problem("RUN", f"{run} is not an unknown run: {why}.")])
    result: list[tuple[CheckpointStore, Sequence[Leftover]]] = []
    for run_id in stored:
        checkpoints = CheckpointStore(store, run_id, _journal(run_id, known.get(run_id), home))
        if unknown_runs and run_id in unknown:
            result.append((checkpoints, _everything(checkpoints, time.time() - grace_seconds)))
        elif run is None and (run_id in known or not unknown_runs):
            result.append((checkpoints, _leftovers(checkpoints, grace_seconds, samples_seconds)))
    return result


def _leftovers(checkpoints: CheckpointStore, grace_seconds: float, samples_seconds: float | None) -> Sequence[Leftover]:
    found = checkpoints.leftovers(grace_seconds)
    if samples_seconds is None:
        return found
    samples = checkpoints.store.list(samples_prefix(checkpoints.run_id))
    return [*found, *old_samples(checkpoints.run_id, samples, time.time() - samples_seconds)]


def _check_complete(reader: MetadataReader | None, store: ObjectStore, known: Mapping[str, RunRow]) -> None:
    """Raises SpecError if runs that are not in `known` may be on record nevertheless."""
    if reader is not None and (namespace := reader.only_namespace()) is not None:
        raise SpecError(
            [
                Problem(
                    "--unknown-runs",
                    f"This login sees only runs of the namespace {namespace}, so those of others would count as "
                    "unknown: use the login of the database's owner.",
                )
            ]
        )
    if not known.keys() & set(store.folders()):
        raise SpecError(
            [
                Problem(
                    "--unknown-runs",
                    f"None of the runs in {store.url} is on record, so this is not their metadata store: name it with "
                    "--metadata or --home.",
                )
            ]
        )


def _recorded(reader: MetadataReader | None, run_id: str) -> RunRow | None:
    row = None if reader is None else reader.run(run_id)
    return row if row is not None and row.run_id == run_id else None


def _open(url: str, run_id: str, step: int | None, run: RunRow | None, home: Home) -> RunCheckpoints:
    return RunCheckpoints(CheckpointStore(open_store(url), run_id, _journal(run_id, run, home)), step, run)


def _journal(run_id: str, run: RunRow | None, home: Home) -> Journal:
    """Where decisions about the run's checkpoints are recorded: nowhere if the run is not on record."""
    return NullJournal() if run is None else RecordedJournal(open_writer(home.metadata_url), run_id)


class RecordedJournal(NullJournal):
    """A journal that writes to the metadata store at once. A failure is logged and stops nothing; events are discarded,
    since the command prints what it does."""

    def __init__(self, writer: MetadataWriter, run_id: str) -> None:
        self._recorder, self._run_id = Recorder(writer), run_id

    def checkpoint(self, row: CheckpointRow) -> None:
        self._recorder.add(self._run_id, row)
        if (error := self._recorder.flush()) is not None:
            log.warning("Cannot update the record of the checkpoint at step %d: %s", row.step, error)


def _spec(run: RunRow | None) -> Mapping[str, Any]:
    spec: Mapping[str, Any] = {} if run is None else run.spec.get("spec", {})
    return spec


def _is_a_runs(store: ObjectStore, folder: str) -> bool:
    """Whether a folder is certainly a run's: by its name, and by a checkpoint, samples or logs in it."""
    if RUN_ID.fullmatch(folder) is None:
        return False
    prefix = f"{folder}/"
    return any(_OF_A_RUN.match(info.key.removeprefix(prefix)) for info in store.list(prefix))


def _everything(checkpoints: CheckpointStore, limit: float) -> Sequence[Leftover]:
    run_id = checkpoints.run_id
    prefixes = (checkpoints_prefix(run_id), samples_prefix(run_id), spool_prefix(run_id), logs_prefix(run_id))
    objects = tuple(info for prefix in prefixes for info in checkpoints.store.list(prefix))
    return [Leftover("UnknownRun", None, objects)] if max(info.modified for info in objects) <= limit else []
