"""Stops processes for some time, all of it or half: an engine that hangs, a silent pod, a slow machine.

It imports the standard library only, so that its source can be run in a container: `python3 -c SOURCE engine 60 1`. The
processes go on after that time whatever becomes of who asked, since a child that nobody waits for sees to it.
"""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterable

# What the title of an engine's process contains.
ENGINE = "EngineCore"
PERIOD_SECONDS = 0.2
NOTHING_THERE = 3
# Of a process that stops others: if it were stopped, they would not go on.
_OWN = "def stop_in_background("


def processes(title: str = "") -> list[int]:
    """Ids of the processes that this one can see and whose command has `title`: but for the first one, which the
    kernel does not stop, for itself and those above it, and for others that run this source."""
    found = []
    spared = {1, *_ancestry(os.getpid())}
    for name in os.listdir("/proc"):
        if not name.isdecimal() or int(name) in spared:
            continue
        with contextlib.suppress(OSError):
            with open(f"/proc/{name}/cmdline", "rb") as file:
                command = file.read().replace(b"\0", b" ").decode("utf-8", "replace")
            if command and title in command and _OWN not in command:
                found.append(int(name))
    return sorted(found)


def stop(pids: Iterable[int], seconds: float, share: float = 1.0) -> None:
    """Stop these processes for `share` of each PERIOD_SECONDS of the next `seconds`; returns after these."""
    pids, end = list(pids), time.monotonic() + seconds
    try:
        while (left := end - time.monotonic()) > 0:
            _send(pids, signal.SIGSTOP)
            if share >= 1:
                time.sleep(left)
                continue
            time.sleep(share * PERIOD_SECONDS)
            _send(pids, signal.SIGCONT)
            time.sleep((1 - share) * PERIOD_SECONDS)
    finally:
        _send(pids, signal.SIGCONT)


def stop_in_background(pids: Iterable[int], seconds: float, share: float = 1.0) -> None:
    """The same, in a process of its own, which ends with that."""
    if os.fork():
        return
    try:
        os.setsid()
        # Whoever reads what this process prints waits for its end, not for that of the child.
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(null, descriptor)
        stop(pids, seconds, share)
    finally:
        os._exit(0)


def _send(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, number)


def _ancestry(pid: int) -> set[int]:
    above = set()
    while pid > 1 and pid not in above:
        above.add(pid)
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                # The name, in parentheses, may contain anything.
                pid = int(file.read().rpartition(b")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            break
    return above


def main(arguments: list[str]) -> int:
    """`engine|all SECONDS SHARE`: stop them, and print their ids."""
    which, seconds, share = arguments
    pids = processes(ENGINE if which == "engine" else "")
    if not pids:
        return NOTHING_THERE
    stop_in_background(pids, float(seconds), float(share))
    sys.stdout.write(f"{len(pids)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
