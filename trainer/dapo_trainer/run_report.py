"""A run's report: heartbeat, metrics, events, samples and checkpoints. Nothing here raises or blocks."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from dapo_core.db import EventType
from dapo_core.run.entries import Sample
from dapo_core.run.metrics import STORE_LAG
from dapo_core.run.recording import RecordedGroup, RecordedResponse
from dapo_trainer.checkpoints.checkpoint_store import LocalCheckpoint
from dapo_trainer.checkpoints.uploader import CheckpointUploader
from dapo_trainer.groups.sample_log import SampleLog
from dapo_trainer.process.phase_watch import PhaseWatch
from dapo_trainer.process.trainer_process import Heartbeat
from dapo_trainer.spool import Spool
from dapo_trainer.trackers.mirror import Mirror
from dapo_trainer.verl_adapter.session import Report

log = logging.getLogger(__name__)


class RunReport(Report):
    """The session's report, on the stores of one attempt."""

    def __init__(
        self,
        heartbeat: Path,
        spool: Spool,
        samples: SampleLog,
        uploads: CheckpointUploader,
        spec_digest: str,
        lag_seconds: Callable[[], float] = lambda: 0.0,
        mirrors: Sequence[Mirror] = (),
        watch: PhaseWatch | None = None,
    ) -> None:
        self._watch = watch
        self._lag_seconds, self._mirrors = lag_seconds, mirrors
        self._heartbeat, self._spool = heartbeat, spool
        self._samples, self._uploads, self._spec_digest = samples, uploads, spec_digest

    def phase(self, phase: str, step: int, total_steps: int, detail: str = "") -> None:
        """What the trainer does from now on, for whoever watches the run."""
        if self._watch is not None:
            self._watch.enter(phase, detail)
        try:
            Heartbeat(phase, step, total_steps, time.time(), detail).write(self._heartbeat)
        except OSError as error:
            log.warning("The heartbeat cannot be written: %s", error)

    def step(self, step: int, values: Mapping[str, float]) -> None:
        recorded = {**values, STORE_LAG: self._lag_seconds()}
        self._spool.step(step, recorded)
        for mirror in self._mirrors:
            mirror.add(step, recorded)

    def event(self, type: EventType, reason: str, message: str, step: int | None = None) -> None:
        self._spool.event(reason, message, type=type, step=step)

    def samples(self, step: int, rows: Sequence[Sample]) -> None:
        self._samples.write(step, rows)

    def groups(
        self, step: int, groups: Sequence[RecordedGroup], responses: Callable[[], Sequence[RecordedResponse]]
    ) -> None:
        self._samples.write_groups(step, groups, responses)

    def checkpoint(self, step: int, folder: Path, metrics: Mapping[str, float]) -> None:
        self._uploads.upload(LocalCheckpoint(step, folder, self._spool.attempt, self._spec_digest, dict(metrics)))
