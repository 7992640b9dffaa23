"""What this project needs of processes beyond psutil: identities to store, signals that cannot miss, and stacks.

The stacks of every process of a hung attempt are written into its log before it is ended.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

import psutil

from dapo_trainer.process import fork_launcher


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


def has_ended(process: psutil.Process) -> bool:
    """Whether no thread of a process is left.

    A killed process is called a zombie as soon as its first thread has ended. While the others end it still holds its
    memory, on devices too, its locks and its open files.
    """
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE and process.num_threads() <= 1)
    except psutil.NoSuchProcess:
        return True


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


ONE_DUMP_SECONDS = 15.0
ALL_DUMPS_SECONDS = 60.0
# Time for faulthandler to write its stacks after SIGABRT.
ABORT_SECONDS = 1.0


def dump_stacks(processes: Iterable[psutil.Process], log: Path) -> int:
    """Append the stacks of `processes` to `log`. Returns how many were read.

    py-spy reads them from outside, so a process stuck in native code is shown too. Where the kernel forbids that,
    Python processes are sent SIGABRT, at which faulthandler writes their stacks to the same log: they end by it,
    as they are about to anyway.
    """
    deadline = time.monotonic() + ALL_DUMPS_SECONDS
    read = 0
    unread: list[psutil.Process] = []
    for process in sorted(processes, key=lambda process: process.pid):
        if _name(process) == fork_launcher.NAME:
            continue  # it waits for one of the others
        stack = _py_spy(process.pid, min(ONE_DUMP_SECONDS, deadline - time.monotonic()))
        _append(log, f"--- {_title(process)} ---\n{stack or _kernel_view(process.pid)}\n")
        read += stack is not None
        if stack is None and _runs_python(process):
            unread.append(process)
    aborted = [process for process in unread if send(process, signal.SIGABRT)]
    if aborted:
        time.sleep(ABORT_SECONDS)
    return read + len(aborted)


def _py_spy(pid: int, seconds: float) -> str | None:
    program = _program()
    if program is None or seconds <= 0:
        return None
    try:
        done = subprocess.run(
            [program, "dump", "--pid", str(pid)], capture_output=True, text=True, timeout=seconds, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def _program() -> str | None:
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if beside.exists() else shutil.which("py-spy")


def _name(process: psutil.Process) -> str:
    try:
        return str(process.name())
    except psutil.Error:
        return ""


def _title(process: psutil.Process) -> str:
    try:
        return f"{process.name()} (process {process.pid}, {process.status()})"
    except psutil.Error:
        return f"process {process.pid}"


def _kernel_view(pid: int) -> str:
    """Where in the kernel a process waits: all that can be seen of one that does not run Python."""
    try:
        waits = Path(f"/proc/{pid}/wchan").read_text()
        return f"no Python stack; waits in the kernel at: {waits if waits not in ('', '0') else 'nothing, it runs'}"
    except OSError:
        return "ended meanwhile"


def _runs_python(process: psutil.Process) -> bool:
    try:
        return "python" in Path(process.exe()).name
    except psutil.Error:
        return False


def _append(log: Path, text: str) -> None:
    with log.open("a") as out:
        out.write(text)
