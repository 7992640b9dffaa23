"""Logs as they are read: in steps, so that one that grows can be followed, and as lines of text."""

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from dapo_core.naming import Role
from dapo_core.objectstore import ObjectNotFoundError, ObjectStore
from dapo_core.run.formatting import printable
from dapo_core.run.log_keys import PART_BYTES, PodLog, logs_prefix, parse_log_key

BLOCK: Final = 256 * 1024
# A line without an end is printed in pieces of this size.
LONGEST_LINE: Final = 64 * 1024
_COLORS: Final = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


@dataclass(frozen=True)
class LogRequest:
    """What the user wants to see; None: the namespace of the kubeconfig, the newest attempt, all lines."""

    job: str
    namespace: str | None
    attempt: int | None
    role: Role
    index: int
    follow: bool
    tail: int | None


@dataclass(frozen=True)
class ClusterAnswer:
    """What a cluster has of a job: whether its log was printed, else its run if the job exists, and why it was not."""

    printed: bool
    run_id: str | None = None
    why: str = ""


class LogSource(Protocol):
    """A log that may grow."""

    def read(self) -> Iterator[bytes]:
        """What was added since the last call. Raises StoreError."""


class LogFile:
    """The log of a local attempt."""

    def __init__(self, path: Path) -> None:
        self._path, self._offset = path, 0

    def read(self) -> Iterator[bytes]:
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                while data := file.read(BLOCK):
                    self._offset += len(data)
                    yield data
        except FileNotFoundError:
            return


class StoredLog:
    """The log of a pod in the object store."""

    def __init__(self, store: ObjectStore, run_id: str, log: PodLog) -> None:
        self._store, self._run_id, self._log = store, run_id, log
        self._part, self._offset = 1, 0  # the next byte to read

    def read(self) -> Iterator[bytes]:
        sizes = {
            parsed[1]: min(info.size, PART_BYTES)  # more was not written by a pod of ours
            for info in self._store.list(self._log.prefix(self._run_id))
            if (parsed := parse_log_key(self._run_id, info.key)) is not None
        }
        for number in sorted(number for number in sizes if number >= self._part):
            known = self._offset if number == self._part else 0
            if sizes[number] <= known:
                continue
            try:
                with self._store.open(self._log.key(self._run_id, number)) as part:
                    data = part.read(PART_BYTES)
            except ObjectNotFoundError:  # no longer kept
                continue
            if number > self._part + 1 or (number > self._part and not self._offset):
                yield f"[parts {self._part + bool(self._offset)} to {number - 1} of this log are not kept]\n".encode()
            self._part, self._offset = number, len(data)
            yield data[known:]


def stored_logs(store: ObjectStore, run_id: str) -> list[PodLog]:
    """The logs of a run that its store has, by attempt and pod. Raises StoreError."""
    parsed = (parse_log_key(run_id, info.key) for info in store.list(logs_prefix(run_id)))
    return sorted({each[0] for each in parsed if each is not None})


@dataclass
class LogPrinter:
    """Prints bytes as lines of text, without what controls a terminal: others wrote them."""

    write: Callable[[str], None]
    _rest: str = field(default="", init=False)

    def print(self, blocks: Iterable[bytes], tail: int | None = None) -> None:
        """Print all lines that are whole, or the last `tail` of them."""
        lines = (line for block in blocks for line in self._lines(block))
        for line in lines if tail is None else deque(lines, maxlen=tail):
            self.write(line)

    def end(self) -> None:
        """Print a last line that has no end."""
        if self._rest:
            self.write(as_text(self._rest) + "\n")
        self._rest = ""

    def _lines(self, block: bytes) -> Iterator[str]:
        # A character may be cut between blocks: bytes are kept as they are until their line is whole.
        text = self._rest + block.decode("utf-8", "surrogateescape")
        *lines, rest = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        self._rest = rest
        if len(rest) > LONGEST_LINE:
            lines, self._rest = [*lines, rest], ""
        for line in lines:
            yield as_text(line) + "\n"


def as_text(line: str) -> str:
    """A line without colors and control characters."""
    readable = line.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return printable(_COLORS.sub("", readable))
