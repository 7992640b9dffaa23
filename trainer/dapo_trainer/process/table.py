"""The processes of this machine as the kernel lists them in /proc.

A process is told apart by its id together with its start in clock ticks since boot: ids are used again, and wall-clock
start times move when the clock is set.
"""

import os
import signal
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")


@dataclass(frozen=True, order=True)
class Identity:
    """One process for as long as the machine is up."""

    pid: int
    started: int


@dataclass(frozen=True)
class Process:
    """A row of the table. `state` is the kernel's letter (Z is a zombie)."""

    identity: Identity
    name: str
    state: str
    parent: int
    session: int

    @property
    def pid(self) -> int:
        return self.identity.pid


Table = dict[int, Process]


def parse_stat(text: str) -> Process:
    """A row from /proc/PID/stat. The name stands in parentheses and may hold any character, parentheses too."""
    head, _, tail = text.rpartition(")")
    pid, _, name = head.partition(" (")
    fields = tail.split()
    return Process(
        identity=Identity(int(pid), int(fields[19])),
        name=name,
        state=fields[0],
        parent=int(fields[1]),
        session=int(fields[3]),
    )


def read(pid: int) -> Process | None:
    """The row of one process, or None when there is none."""
    try:
        return parse_stat((PROC / str(pid) / "stat").read_text(errors="replace"))
    except (OSError, ValueError, IndexError):
        return None


def table() -> Table:
    """All processes, by id. One that ends meanwhile is left out."""
    rows = (read(int(entry)) for entry in os.listdir(PROC) if entry.isdigit())
    return {row.pid: row for row in rows if row}


def environment(pid: int) -> set[bytes]:
    """`NAME=value` entries with which a process was started; empty when gone, foreign, or written over by a title."""
    try:
        return set((PROC / str(pid) / "environ").read_bytes().split(b"\0"))
    except OSError:
        return set()


def boot_id() -> str:
    """What tells this start of the machine from all others."""
    return (PROC / "sys/kernel/random/boot_id").read_text().strip()


def send(identity: Identity, number: signal.Signals) -> bool:
    """Signal exactly this process, never one that got its id later. False when it is gone or not ours to signal."""
    try:
        handle = os.pidfd_open(identity.pid)
    except OSError:
        return False
    try:
        row = read(identity.pid)
        if row is None or row.identity != identity:
            return False
        signal.pidfd_send_signal(handle, number)
        return True
    except OSError:
        return False
    finally:
        os.close(handle)
