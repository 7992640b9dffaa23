"""What every process of a hung attempt is doing, written into its log before it is ended."""

import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import psutil

from dapo_trainer.process import fork_launcher
from dapo_trainer.process.processes import send

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
