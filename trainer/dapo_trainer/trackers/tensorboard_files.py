"""A run as TensorBoard's event files, in `tensorboard/` of the run's folder; a file for each attempt."""

import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

from dapo_trainer.trackers.mirror import TrackedRun

ROOT_VARIABLE = "DAPO_TENSORBOARD_DIR"


def folder_of(run: TrackedRun, environment: Mapping[str, str]) -> Path:
    """Where the run's event files are."""
    root = environment.get(ROOT_VARIABLE)
    return Path(root) / run.run_id if root else run.folder / "tensorboard"


class TensorBoardFiles:
    """Appends to one event file. Raises OSError."""

    def __init__(self, run: TrackedRun, first_step: int) -> None:
        folder = folder_of(run, os.environ)
        folder.mkdir(parents=True, exist_ok=True)
        # TensorBoard reads the files of a folder in the order of their names; a second may have several.
        name = f"events.out.tfevents.{time.time_ns():020d}.{socket.gethostname()}.{os.getpid()}"
        self._file = (folder / name).open("xb")
        self._records = RecordWriter(self._file)
        self._write(Event(wall_time=time.time(), file_version="brain.Event:2"))
        # What earlier attempts logged from this step on, TensorBoard replaces by what follows.
        self._write(Event(wall_time=time.time(), step=first_step, session_log=SessionLog(status=SessionLog.START)))
        self._file.flush()

    def log(self, step: int, at: float, values: Mapping[str, float]) -> None:
        scalars = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._write(Event(wall_time=at, step=step, summary=Summary(value=scalars)))
        self._file.flush()

    def close(self, *, done: bool) -> None:
        self._file.close()

    def _write(self, event: Event) -> None:
        self._records.write(event.SerializeToString())
