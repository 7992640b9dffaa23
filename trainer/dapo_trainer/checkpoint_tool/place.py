"""From what a user names to a run's checkpoints, wherever they lie."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dapo_core.cli.runs import find_run
from dapo_core.db import (
    CheckpointRow,
    MetadataReader,
    MetadataWriter,
    RunRow,
    open_reader,
    open_writer,
)
from dapo_core.objectstore import ObjectStore, open_store
from dapo_core.run.checkpoint import Retention
from dapo_core.run.home import Home, NoRunsError
from dapo_core.run.recorder import Recorder
from dapo_trainer.checkpoints.resume_from import parse
from dapo_trainer.checkpoints.store import CheckpointStore, Journal, Silent

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Found:
    """A run's checkpoints, the step that was named if any, and the run's row where it is on record."""

    checkpoints: CheckpointStore
    step: int | None
    run: RunRow | None

    @property
    def retention(self) -> Retention:
        """What the run's job says about keeping."""
        kept = _spec(self.run).get("checkpoints", {})
        return Retention(kept.get("keepLast", 2), kept.get("keepBest", 0), kept.get("bestMetric"))


def open_record(home: Home) -> MetadataReader | None:
    """The record of the home's runs; None where none has been recorded yet."""
    try:
        return open_reader(home.recorded_url)
    except NoRunsError:
        return None


def find(name: str, home: Home) -> Found:
    """`RUN`, `RUN@STEP`, a job's name (its newest run) or a checkpoint's URI.

    Raises UnknownRunError with the nearest names, CheckpointError for a URI of no checkpoint, StoreError.
    """
    source = parse(name)
    reader = open_record(home)
    if source.root is not None or home.store is not None or reader is None:
        # The store is named: the run need not be on record.
        run = _recorded(reader, source.run_id)
        return _found(source.root or home.store_url, source.run_id, source.step, run, home)
    run = find_run(reader, source.run_id)
    return _found(store_url(run, home), run.run_id, source.step, run, home)


def store_url(run: RunRow, home: Home) -> str:
    """Where a recorded run keeps its objects."""
    uri: str | None = _spec(run).get("checkpoints", {}).get("uri")
    return uri or home.store_url


def _recorded(reader: MetadataReader | None, run_id: str) -> RunRow | None:
    row = None if reader is None else reader.run(run_id)
    return row if row is not None and row.run_id == run_id else None


def _found(url: str, run_id: str, step: int | None, run: RunRow | None, home: Home) -> Found:
    return Found(CheckpointStore(open_store(url), run_id, journal(run_id, run, home)), step, run)


def journal(run_id: str, run: RunRow | None, home: Home) -> Journal:
    """Where decisions about the run's checkpoints are written: nowhere if the run is not on record."""
    return Silent() if run is None else RecordedJournal(open_writer(home.metadata_url), run_id)


class RecordedJournal(Silent):
    """A journal that writes to the metadata store at once. A failure is logged and stops nothing; events are on the
    terminal already."""

    def __init__(self, writer: MetadataWriter, run_id: str) -> None:
        self._recorder, self._run_id = Recorder(writer), run_id

    def checkpoint(self, row: CheckpointRow) -> None:
        self._recorder.add(self._run_id, row)
        if (error := self._recorder.flush()) is not None:
            log.warning("Cannot update the record of the checkpoint at step %d: %s", row.step, error)


def _spec(run: RunRow | None) -> Mapping[str, Any]:
    spec: Mapping[str, Any] = {} if run is None else run.spec.get("spec", {})
    return spec


def run_ids(store: ObjectStore) -> list[str]:
    """Runs that have objects in the store, by name."""
    return sorted({info.key.partition("/")[0] for info in store.list("") if "/" in info.key})
