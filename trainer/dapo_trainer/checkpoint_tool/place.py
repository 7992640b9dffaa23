"""From what a user names to a run's checkpoints, wherever they lie."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dapo_core.cli.runs import NoRunsError, find_run, metadata_url
from dapo_core.db import (
    Batch,
    CheckpointRow,
    EventType,
    MetadataReader,
    MetadataWriter,
    RunRow,
    open_reader,
    open_writer,
)
from dapo_core.errors import StoreError
from dapo_core.objectstore import ObjectStore, open_store
from dapo_core.run.retention import Retention
from dapo_trainer.checkpoints.resume_from import parse
from dapo_trainer.checkpoints.store import CheckpointStore, Journal, Silent
from dapo_trainer.process.run_folder import Home

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Places:
    """Where to look: options of the command, each left out by default."""

    home: Path | None = None
    metadata: str | None = None
    store: str | None = None

    @property
    def store_url(self) -> str:
        """Where runs keep their objects unless their job says otherwise."""
        return self.store or Home.find(self.home).store_url

    def metadata_url(self) -> str | None:
        """None where no run has been recorded yet."""
        try:
            return metadata_url(self.home, self.metadata)
        except NoRunsError:
            return None

    def reader(self) -> MetadataReader | None:
        url = self.metadata_url()
        return None if url is None else open_reader(url)


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


def find(name: str, places: Places) -> Found:
    """`RUN`, `RUN@STEP`, a job's name (its newest run) or a checkpoint's URI.

    Raises UnknownRunError with the nearest names, CheckpointError for a URI of no checkpoint, StoreError.
    """
    source = parse(name)
    reader = places.reader()
    if source.root is not None or places.store is not None or reader is None:
        # The store is named: the run need not be on record.
        run = _recorded(reader, source.run_id)
        return _found(source.root or places.store_url, source.run_id, source.step, run, places)
    run = find_run(reader, source.run_id)
    return _found(store_url(run, places), run.run_id, source.step, run, places)


def store_url(run: RunRow, places: Places) -> str:
    """Where a recorded run keeps its objects."""
    uri: str | None = _spec(run).get("checkpoints", {}).get("uri")
    return uri or places.store_url


def _recorded(reader: MetadataReader | None, run_id: str) -> RunRow | None:
    row = None if reader is None else reader.run(run_id)
    return row if row is not None and row.run_id == run_id else None


def _found(url: str, run_id: str, step: int | None, run: RunRow | None, places: Places) -> Found:
    return Found(CheckpointStore(open_store(url), run_id, journal(run_id, run, places)), step, run)


def journal(run_id: str, run: RunRow | None, places: Places) -> Journal:
    """Where decisions about the run's checkpoints are written: nowhere if the run is not on record."""
    url = places.metadata_url()
    return Silent() if run is None or url is None else Record(open_writer(url), run_id)


class Record(Silent):
    """A journal that writes to the metadata store at once. One that can not be written is told and stops nothing."""

    def __init__(self, writer: MetadataWriter, run_id: str) -> None:
        self._writer, self._run_id = writer, run_id

    def checkpoint(self, row: CheckpointRow) -> None:
        try:
            self._writer.write(self._run_id, Batch(checkpoints=[row]))
        except StoreError as error:
            log.warning("The record of the checkpoint of step %d is not changed: %s", row.step, error)

    def event(self, reason: str, message: str, *, type: EventType = "Normal", step: int | None = None) -> None:
        """Told on the terminal already."""


def _spec(run: RunRow | None) -> Mapping[str, Any]:
    spec: Mapping[str, Any] = {} if run is None else run.spec.get("spec", {})
    return spec


def run_ids(store: ObjectStore) -> list[str]:
    """Runs that have objects in the store, by name."""
    return sorted({info.key.partition("/")[0] for info in store.list("") if "/" in info.key})
