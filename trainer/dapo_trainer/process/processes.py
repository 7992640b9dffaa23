"""What this project needs of processes beyond psutil: identities that can be stored, and signals that cannot miss."""

import os
import signal
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

import psutil


def boot_id() -> str:
    """Identifies this start of the machine; process ids and seconds since boot mean nothing in another one."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def started_since_boot(pid: int) -> float:
    """When a process started, in seconds since boot. Raises psutil.Error when there is no such process.

    With its id this distinguishes a process from a later one of the same id, also after the clock was set, which moves
    wall-clock start times.
    """
    return round(float(psutil.Process(pid).create_time() - psutil.boot_time()), 2)


def find(pid: int, since_boot: float) -> psutil.Process | None:
    """The process of that id and start, or None when it has ended."""
    try:
        # The kernel rounds the boot time to seconds.
        return psutil.Process(pid) if abs(started_since_boot(pid) - since_boot) <= 1.0 else None
    except psutil.Error:
        return None


def session_of(pid: int) -> int | None:
    """The id of a process's session; None when the process has ended."""
    try:
        return os.getsid(pid)
    except OSError:
        return None


def environment_of(process: psutil.Process) -> Mapping[str, str]:
    """The variables a process was started with; empty when it has ended, is not ours, or wrote a title over them."""
    try:
        return dict(process.environ())
    except psutil.Error:
        return {}


def send(process: psutil.Process, number: signal.Signals) -> bool:
    """Signal exactly this process, never a later one of its id. False when it has ended or is not ours to signal."""
    try:
        handle = os.pidfd_open(process.pid)
    except OSError:
        return False
    try:
        if not process.is_running():
            return False
        signal.pidfd_send_signal(handle, number)
        return True
    except OSError:
        return False
    finally:
        os.close(handle)


def descendants(parents: Mapping[int, int], seeds: Iterable[int], spare: Collection[int] = ()) -> set[int]:
    """`seeds` and everything below them, without `spare` and what is reached only through it. Pure.

    `parents` maps the id of each process to its parent's.
    """
    children: dict[int, list[int]] = {}
    for pid, parent in parents.items():
        children.setdefault(parent, []).append(pid)
    members: set[int] = set()
    waiting = list(seeds)
    while waiting:
        pid = waiting.pop()
        if pid in members or pid in spare or pid not in parents:
            continue
        members.add(pid)
        waiting.extend(children.get(pid, ()))
    return members


def ancestry(parents: Mapping[int, int], pid: int) -> set[int]:
    """`pid` and the processes above it, which are never to be ended. Pure."""
    above: set[int] = set()
    while pid in parents and pid not in above:
        above.add(pid)
        pid = parents[pid]
    return above
