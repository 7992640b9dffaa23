"""Files of this machine that several processes use: replaced in one step, and locked."""

import fcntl
import os
from pathlib import Path


def write_atomically(path: Path, content: str | bytes, *, sync: bool = False) -> None:
    """Replace the file so that a reader sees the old content or the new, never a part; with `sync`, also after a power
    cut. Raises OSError, and then leaves the old file in place."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with scratch.open("wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        scratch.replace(path)
    except OSError:
        scratch.unlink(missing_ok=True)
        raise


def lock_file(path: Path) -> int:
    """An open descriptor that holds an exclusive lock of `path`, which is created if it does not exist.

    The lock lasts until the descriptor is closed or its process ends, however that ends. Raises BlockingIOError when
    another process holds it, OSError when the file cannot be opened.
    """
    # Python opens files close-on-exec, so no child keeps the lock alive after this process.
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
