"""Uploads checkpoints to the object store while training runs.

The newest checkpoint matters most. While one is being uploaded one more may wait; a third replaces the waiting one. A
store that fails is retried until a newer checkpoint waits or the trainer ends. Each abandoned upload is counted,
recorded and reported by an event; training continues.
"""

import logging
import random
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from dapo_core.backoff import Backoff
from dapo_core.errors import CheckpointError, StoreError
from dapo_core.parallel import give_way
from dapo_core.run.checkpoint import Manifest, Retention
from dapo_core.run.formatting import duration, size
from dapo_trainer.checkpoints.checkpoint_store import (
    CheckpointStore,
    LocalCheckpoint,
    RemoteFiles,
    no_remote_files,
)

log = logging.getLogger(__name__)

BACKOFF: Final = Backoff(1.0, 60.0)
# A single failure is normal; only repeated ones are reported.
REPORTED_FAILURES: Final = 2
T = TypeVar("T")


class _AbandonedError(Exception):
    """This upload is no longer retried: the message says why."""


class CheckpointUploader:
    """One thread that commits checkpoints and applies retention. No method raises; only `close` and `wait` wait."""

    def __init__(
        self,
        checkpoints: CheckpointStore,
        retention: Retention,
        *,
        backoff: Backoff = BACKOFF,
        remote_files: RemoteFiles = no_remote_files,
    ) -> None:
        """`remote_files` makes other pods store their files of a checkpoint."""
        self._checkpoints = checkpoints
        self._retention = retention
        self._backoff = backoff
        self._remote_files = remote_files
        self._changed = threading.Condition()
        self._waiting: LocalCheckpoint | None = None
        self._current: LocalCheckpoint | None = None
        self._give_up_at: float | None = None
        self._thread: threading.Thread | None = None
        self._kept: Path | None = None
        self.committed: Manifest | None = None
        self.failures = 0

    def upload(self, checkpoint: LocalCheckpoint) -> None:
        """Take over the checkpoint and its folder, which is removed when a later one is committed."""
        # Recorded first: the record of its end has to be the later one.
        row = self._checkpoints.row(checkpoint.step, checkpoint.attempt, "uploading")
        self._checkpoints.journal.checkpoint(row)
        with self._changed:
            outdated, self._waiting = self._waiting, checkpoint
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="dapo-uploads", daemon=True)
                self._thread.start()
            self._changed.notify_all()
        if outdated is not None:
            self._abandon(outdated, f"The checkpoint at step {checkpoint.step} was saved before its upload began.")

    @property
    def busy(self) -> list[int]:
        """Steps whose upload is running or waiting."""
        with self._changed:
            return [local.step for local in (self._current, self._waiting) if local is not None]

    def wait(self, timeout_seconds: float) -> bool:
        """Wait until all uploads have ended. Returns False on timeout."""
        with self._changed:
            return self._changed.wait_for(lambda: self._current is None and self._waiting is None, timeout_seconds)

    def close(self, timeout_seconds: float) -> bool:
        """Finish uploads within `timeout_seconds`, and stop. Returns whether all of them were committed."""
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
        while (checkpoint := self._take()) is not None:
            try:
                self._commit(checkpoint)
            except Exception as error:  # whatever it is, training goes on and the next one is tried
                self._abandon(checkpoint, str(error))
            with self._changed:
                self._current = None
                self._changed.notify_all()

    def _take(self) -> LocalCheckpoint | None:
        """The next checkpoint; None when the uploader is closed and there is none."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting is not None or self._give_up_at is not None)
            self._current, self._waiting = self._waiting, None
            return self._current

    def _commit(self, checkpoint: LocalCheckpoint) -> None:
        began, step, journal = time.monotonic(), checkpoint.step, self._checkpoints.journal
        manifest = self._checkpoints.commit(checkpoint, give=True, retry=self._retry, remote_files=self._remote_files)
        self.committed = manifest
        self._keep(checkpoint.folder)
        took = duration(time.monotonic() - began)
        message = f"Checkpoint at step {step} committed: {size(manifest.size_bytes)} in {took}."
        journal.event("CheckpointCommitted", message, step=step)
        try:
            self._checkpoints.retain(self._retention, checkpoint.attempt)
        except StoreError as error:  # it is committed nevertheless; the next retention removes more
            journal.event("RetentionFailed", str(error), type="Warning", step=step)

    def _keep(self, folder: Path) -> None:
        """Keep the newest committed checkpoint on the disk: a restart on this machine need not fetch it."""
        outdated, self._kept = self._kept, folder
        if self._checkpoints.store.url.startswith("file:"):  # the store is a local disk itself
            outdated, self._kept = folder, None
        if outdated is not None:
            shutil.rmtree(outdated, ignore_errors=True)

    def _retry(self, write: Callable[[], T]) -> T:
        """Do one write to the store, and repeat it until it succeeds or the upload is abandoned."""
        failures = 0
        while True:
            try:
                return write()
            except CheckpointError:
                raise
            except StoreError as error:
                failures += 1
                if failures == REPORTED_FAILURES:
                    message = f"The store does not accept the checkpoint: {error} Training continues. Retrying."
                    step = None if self._current is None else self._current.step
                    self._checkpoints.journal.event("CheckpointDelayed", message, type="Warning", step=step)
                self._wait(self._backoff.delay(failures, random.random()), error)

    def _wait(self, seconds: float, error: StoreError) -> None:
        with self._changed:
            if self._give_up_at is not None:
                seconds = min(seconds, self._give_up_at - time.monotonic())
                if seconds <= 0:
                    raise _AbandonedError(f"The trainer ended before the store accepted it: {error}")
            closing = self._give_up_at is not None
            self._changed.wait_for(
                lambda: self._waiting is not None or (self._give_up_at is not None) != closing, seconds
            )
            if self._waiting is not None:
                raise _AbandonedError(f"A newer checkpoint is waiting, and the store failed: {error}")

    def _abandon(self, checkpoint: LocalCheckpoint, why: str) -> None:
        with self._changed:
            self.failures += 1
            newer = self._waiting is not None and self._waiting is not checkpoint
        message = f"The checkpoint at step {checkpoint.step} was not stored: {why}"
        log.warning("%s", message)
        if newer:
            shutil.rmtree(checkpoint.folder, ignore_errors=True)
        else:
            # The newest one there is: somebody may still want it.
            message += f" Its files are in {checkpoint.folder}."
        journal = self._checkpoints.journal
        journal.checkpoint(self._checkpoints.row(checkpoint.step, checkpoint.attempt, "failed", why))
        journal.event("CheckpointFailed", message, type="Warning", step=checkpoint.step)
