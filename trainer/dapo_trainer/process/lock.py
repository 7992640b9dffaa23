"""One process a run: a kernel lock, which ends with its holder however that dies."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dapo_core.errors import RunBusyError


@contextmanager
def hold(path: Path, run_id: str) -> Iterator[None]:
    """Hold the run's lock for the time of the block. Raises RunBusyError, naming the holder, when it is taken."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # Python opens files close-on-exec, so no child keeps the lock alive after this process.
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "of unknown id"
            raise RunBusyError(
                f"The run {run_id} is being worked on by process {holder}: wait for it to end, or stop it with "
                f"`kill {holder}`, and try again."
            ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)
