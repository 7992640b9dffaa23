"""What every process of a hung attempt is doing, written into its log before it is ended."""

import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from dapo_trainer.process.table import PROC, Process, send

ONE_DUMP_SECONDS = 15.0
ALL_DUMPS_SECONDS = 60.0
# Time for faulthandler to write its stacks after SIGABRT.
ABORT_SECONDS = 1.0


def dump_stacks(processes: Iterable[Process], log: Path) -> int:
    """Append the stacks of `processes` to `log` and return how many were read.

    py-spy reads them from outside, so a process stuck in native code is shown too. Where the kernel forbids that,
    Python processes are sent SIGABRT, at which faulthandler writes their stacks to the same log: they end by it,
    as they are about to anyway.
    """
    deadline = time.monotonic() + ALL_DUMPS_SECONDS
    read = 0
    unread: list[Process] = []
    for row in sorted(processes, key=lambda row: row.pid):
        stack = _py_spy(row.pid, min(ONE_DUMP_SECONDS, deadline - time.monotonic()))
        _append(log, f"--- {row.name} (process {row.pid}, state {row.state}) ---\n{stack or _kernel_view(row.pid)}\n")
        read += stack is not None
        if stack is None and _runs_python(row.pid):
            unread.append(row)
    aborted = [row for row in unread if send(row.identity, signal.SIGABRT)]
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


def _kernel_view(pid: int) -> str:
    """Where in the kernel a process waits: all there is to see of one that is not Python's."""
    try:
        waits = (PROC / str(pid) / "wchan").read_text()
        return f"no Python stack; waits in the kernel at: {waits if waits not in ('', '0') else 'nothing, it runs'}"
    except OSError:
        return "ended meanwhile"


def _runs_python(pid: int) -> bool:
    try:
        return "python" in (PROC / str(pid) / "maps").read_text()
    except OSError:
        return False


def _append(log: Path, text: str) -> None:
    with log.open("a") as out:
        out.write(text)
