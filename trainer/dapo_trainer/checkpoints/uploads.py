"""Checkpoints on their way to the object store, beside training.

The newest checkpoint matters most. While one is being stored one more may wait; when a third comes, it takes the place
of the waiting one. A store that fails is tried again until a newer checkpoint waits or the trainer ends. Each one that
is given up is counted, told by an event and recorded; training goes on.
"""

import logging
import random
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

from dapo_core.errors import CheckpointError, StoreError
from dapo_core.parallel import give_way
from dapo_core.run.backoff import Backoff
from dapo_core.run.checkpoint import Manifest, Retention
from dapo_core.run.formatting import duration, size
from dapo_trainer.checkpoints.store import CheckpointStore, Elsewhere, nowhere

log = logging.getLogger(__name__)

BACKOFF: Final = Backoff(1.0, 60.0)
# A store answers badly once now and then; twice in a row is news.
TOLD_FAILURES: Final = 2
T = TypeVar("T")


@dataclass(frozen=True)
class Upload:
    """A checkpoint that training has written to a local folder, which from then on belongs to the uploader."""

    step: int
    folder: Path
    attempt: int
    spec_digest: str
    metrics: Mapping[str, float] = field(default_factory=dict)


class _GivenUpError(Exception):
    """This upload is not tried any more: the message says why."""


class CheckpointUploader:
    """One thread that commits checkpoints and applies retention. No method raises; only `close` and `wait` wait."""

    def __init__(
        self,
        checkpoints: CheckpointStore,
        retention: Retention,
        *,
        backoff: Backoff = BACKOFF,
        elsewhere: Elsewhere = nowhere,
    ) -> None:
        """`elsewhere` puts what other machines have of a checkpoint."""
        self._checkpoints = checkpoints
        self._retention = retention
        self._backoff = backoff
        self._elsewhere = elsewhere
        self._changed = threading.Condition()
        self._waiting: Upload | None = None
        self._current: Upload | None = None
        self._give_up_at: float | None = None
        self._thread: threading.Thread | None = None
        self._kept: Path | None = None
        self.committed: Manifest | None = None
        self.failures = 0

    def upload(
        self,
        step: int,
        folder: Path,
        *,
        attempt: int,
        spec_digest: str,
        metrics: Mapping[str, float] | None = None,
    ) -> None:
        """Take over `folder` as the checkpoint of `step`. It is removed when a later one is committed."""
        upload = Upload(step, folder, attempt, spec_digest, dict(metrics or {}))
        # Told first: the record of its end has to be the later one.
        self._checkpoints.journal.checkpoint(self._checkpoints.row(step, attempt, "uploading"))
        with self._changed:
            outdated, self._waiting = self._waiting, upload
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="dapo-uploads", daemon=True)
                self._thread.start()
            self._changed.notify_all()
        if outdated is not None:
            self._give_up(outdated, f"The checkpoint of step {step} came before its upload began.")

    @property
    def busy(self) -> list[int]:
        """Steps that are being stored or wait for it."""
        with self._changed:
            return [upload.step for upload in (self._current, self._waiting) if upload is not None]

    def wait(self, timeout_seconds: float) -> bool:
        """Wait until nothing is on its way; whether it is so."""
        with self._changed:
            return self._changed.wait_for(lambda: self._current is None and self._waiting is None, timeout_seconds)

    def close(self, timeout_seconds: float) -> bool:
        """Finish what is on its way within `timeout_seconds` and end; whether all of it was committed."""
        failures = self.failures
        with self._changed:
            self._give_up_at = time.monotonic() + timeout_seconds
            self._changed.notify_all()
        done = self.wait(timeout_seconds)
        if self._thread is not None:
            self._thread.join(1.0)
        return done and self.failures == failures

    def _run(self) -> None:
        give_way()
        while (upload := self._take()) is not None:
            try:
                self._store(upload)
            except Exception as error:  # whatever it is, training goes on and the next one is tried
                self._give_up(upload, str(error))
            with self._changed:
                self._current = None
                self._changed.notify_all()

    def _take(self) -> Upload | None:
        """The next upload; None when the uploader is closed and there is none."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting is not None or self._give_up_at is not None)
            self._current, self._waiting = self._waiting, None
            return self._current

    def _store(self, upload: Upload) -> None:
        began = time.monotonic()
        manifest = self._checkpoints.commit(
            upload.step,
            upload.folder,
            attempt=upload.attempt,
            spec_digest=upload.spec_digest,
            metrics=upload.metrics,
            give=True,
            put=self._put,
            elsewhere=self._elsewhere,
        )
        self.committed = manifest
        self._keep(upload.folder)
        took = duration(time.monotonic() - began)
        message = f"Checkpoint of step {upload.step} committed: {size(manifest.size_bytes)} in {took}."
        self._checkpoints.journal.event("CheckpointCommitted", message, step=upload.step)
        try:
            self._checkpoints.retain(self._retention)
        except StoreError as error:  # it is committed all the same; the next one's retention removes more
            self._checkpoints.journal.event("RetentionFailed", str(error), type="Warning", step=upload.step)

    def _keep(self, folder: Path) -> None:
        """The newest committed checkpoint stays on the disk: a restart on this machine need not fetch it."""
        outdated, self._kept = self._kept, folder
        if self._checkpoints.store.url.startswith("file:"):  # on a disk that is as near
            outdated, self._kept = folder, None
        if outdated is not None:
            shutil.rmtree(outdated, ignore_errors=True)

    def _put(self, once: Callable[[], T]) -> T:
        """Do one write to the store, again and again while it fails and the upload is worth it."""
        failures = 0
        while True:
            try:
                return once()
            except CheckpointError:
                raise
            except StoreError as error:
                failures += 1
                if failures == TOLD_FAILURES:
                    message = (
                        f"The store does not take the checkpoint: {error} Training goes on, and it is tried again."
                    )
                    step = None if self._current is None else self._current.step
                    self._checkpoints.journal.event("CheckpointDelayed", message, type="Warning", step=step)
                self._pause(self._backoff.delay(failures, random.random()), error)

    def _pause(self, seconds: float, error: StoreError) -> None:
        with self._changed:
            if self._give_up_at is not None:
                seconds = min(seconds, self._give_up_at - time.monotonic())
                if seconds <= 0:
                    raise _GivenUpError(f"The trainer ended before the store took it: {error}")
            closing = self._give_up_at is not None
            self._changed.wait_for(
                lambda: self._waiting is not None or (self._give_up_at is not None) != closing, seconds
            )
            if self._waiting is not None:
                raise _GivenUpError(f"A newer checkpoint is there, and the store failed: {error}")

    def _give_up(self, upload: Upload, why: str) -> None:
        with self._changed:
            self.failures += 1
            newer = self._waiting is not None and self._waiting is not upload
        log.warning("The checkpoint of step %d is not stored: %s", upload.step, why)
        message = f"The checkpoint of step {upload.step} is not stored: {why}"
        if newer:
            shutil.rmtree(upload.folder, ignore_errors=True)
        else:
            # The newest one there is: somebody may still want it.
            message += f" Its files are in {upload.folder}."
        journal = self._checkpoints.journal
        journal.checkpoint(self._checkpoints.row(upload.step, upload.attempt, "failed", why))
        journal.event("CheckpointFailed", message, type="Warning", step=upload.step)
