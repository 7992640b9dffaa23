"""Rows of Parquet files that anybody may have written, unpacked by another process (`bounded_parquet`).

The server is shared by all viewers: a file that takes too much memory or time ends that process, which the next file
starts again."""

import atexit
import hashlib
import os
import pickle
import subprocess
import sys
import threading
import time
from contextlib import suppress
from typing import Any, Final, TypeAlias

from dapo_core.errors import StoreError
from dapo_dashboard.reads import bounded_parquet
from dapo_dashboard.reads.bounded_parquet import Wanted, received, send

# A page that is read every few seconds does not end the process each time: of so many files, for so many seconds.
_REMEMBERED: Final = 256
_REFUSED_SECONDS: Final = 300.0
Rows: TypeAlias = list[dict[str, Any]]


def rows_of(data: bytes, key: str, wanted: Wanted) -> Rows:
    """The rows of the Parquet file `data`, whose key is named in errors. Raises StoreError, also for too large a
    file."""
    batches = batches_of(data, key, wanted)
    try:
        return [row for batch in batches for row in batch.to_pylist()]
    except Exception as error:  # a text that is none, two fields of one name, the year 300,000, an unknown time zone
        raise StoreError(f"Cannot read {key}: {error}.") from error


def batches_of(data: bytes, key: str, wanted: Wanted) -> list[Any]:
    """The same rows as pyarrow's batches. Raises StoreError."""
    import pyarrow.ipc as ipc

    refused, found = UNPACKER.unpacked(data, wanted)
    if refused:
        raise StoreError(f"Cannot read {key}: {found.decode()}.")
    with ipc.open_stream(found) as stream:
        return list(stream)


class Unpacker:
    """The process that unpacks one file at a time; started at the first, and again if it ends."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        # Files that ended the process, by digest, and when.
        self._ended_it: dict[bytes, float] = {}

    def unpacked(self, data: bytes, wanted: Wanted) -> tuple[bool, bytes]:
        """Whether the file is refused, and why; else its rows as a stream of Arrow's."""
        with self._lock:
            now = time.monotonic()
            if self._ended_it and now < self._ended_it.get(_digest(data), 0.0) + _REFUSED_SECONDS:
                return _TOO_MUCH
            try:
                process = self._running()
                assert process.stdin is not None and process.stdout is not None
                send(process.stdin, pickle.dumps((wanted.most, wanted.columns, wanted.row_group)))
                send(process.stdin, data)
                return received(process.stdout)
            except (OSError, EOFError):
                self._end()
                self._ended_it = dict([*self._ended_it.items()][1 - _REMEMBERED :]) | {_digest(data): now}
                return _TOO_MUCH
            except BaseException:  # half a message is no beginning of the next
                self._end()
                raise

    def start(self) -> None:
        """Start the process, which the first file need not wait for then."""
        with self._lock:
            self._running()

    def close(self) -> None:
        """End the process; the next file starts a new one."""
        with self._lock:
            self._end()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            self._end()
            # Arrow's own allocators keep what they had: with the system's, the limit is that of each file.
            env = {**os.environ, "ARROW_DEFAULT_MEMORY_POOL": "system", "OMP_NUM_THREADS": "1"}
            command = [sys.executable, "-m", bounded_parquet.__name__]
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env)
        return self._process

    def _end(self) -> None:
        if (process := self._process) is not None:
            self._process = None
            process.kill()
            with suppress(OSError):  # what was not sent
                process.__exit__(None, None, None)


_TOO_MUCH: Final = (True, b"it takes too much memory or time")


def _digest(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


UNPACKER: Final = Unpacker()
atexit.register(UNPACKER.close)
