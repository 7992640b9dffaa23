"""All processes of one run: tracked while it runs, and ended to the last one.

A trainer starts Ray's daemons, their workers and vLLM's engine processes; some open sessions of their own, some outlive
their parents, some write their title over their environment. No one sign finds them all, so any of these counts:
having been seen below the trainer, the trainer's session, the run's variables in the environment, and being a child of
one that belongs.
"""

import json
import os
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from dapo_core.local_files import write_atomically
from dapo_trainer.process.processes import (
    ancestry,
    boot_id,
    descendants,
    environment_of,
    find,
    has_ended,
    send,
    session_of,
    started_since_boot,
)
from dapo_trainer.process.run_folder import RunFolder

POLL_SECONDS = 0.05


@dataclass
class ProcessTree:
    """The processes of a run. Those that were seen are also written to a file, for the supervisor after this one."""

    run_id: str
    folder: Path
    record: Path
    # The attempt's first process: its id and start. Its session is the run's also when it has ended.
    first: tuple[int, float] | None = None
    # With their starts in seconds since boot.
    seen: dict[psutil.Process, float] = field(default_factory=dict)
    # Orphans come to a supervisor that is their subreaper; children it had before are not the run's.
    other_children: frozenset[psutil.Process] | None = None

    @classmethod
    def of(cls, run: RunFolder) -> "ProcessTree":
        """The tree as an earlier supervisor of the run left it; empty for a new run."""
        tree = cls(run.run_id, run.path, run.processes)
        with suppress(OSError, ValueError, KeyError, TypeError):
            left = json.loads(run.processes.read_text())
            if left["boot"] == boot_id():
                tree.first = tuple(left["leader"]) if left["leader"] else None
                processes = {find(pid, started): started for pid, started in left["seen"]}
                tree.seen = {process: started for process, started in processes.items() if process}
        return tree

    @property
    def leader(self) -> psutil.Process | None:
        """The attempt's first process, None when it has ended and its exit code was read."""
        return None if self.first is None else find(*self.first)

    def adopt_orphans(self) -> None:
        """From now on every new child of this process counts as the run's."""
        self.other_children = frozenset(psutil.Process().children())

    def started(self, pid: int) -> None:
        """A new attempt's first process; the ones before it are gone."""
        self.first, self.seen = None, {}
        with suppress(psutil.Error):
            self.first = (pid, started_since_boot(pid))
            self._note([psutil.Process(pid)])
        self._write()

    def look(self) -> None:
        """Note the current processes and reap orphans that ended; cheap enough for once a second."""
        if self._note(self._members(thorough=False)):
            self._write()

    def alive(self) -> list[psutil.Process]:
        """Every living process of the run, by all signs. Their `info` has `name` and `status`."""
        return [process for process in self._members(thorough=True) if not has_ended(process)]

    def leads(self) -> bool:
        """Whether the attempt's first process still runs."""
        return (leader := self.leader) is not None and not has_ended(leader)

    def end(self, patience_seconds: float = 0.0, limit_seconds: float = 30.0) -> list[psutil.Process]:
        """Wait `patience_seconds` for the processes to end, then SIGKILL them until none is left.

        Returns those that the kernel would not end within `limit_seconds` (stuck in a driver), normally none.
        """
        _until(lambda: not self.alive(), patience_seconds)

        def none_left() -> bool:
            left = self.alive()
            for process in left:
                send(process, signal.SIGKILL)
            return not left

        return [] if _until(none_left, limit_seconds) else self.alive()

    def _members(self, *, thorough: bool) -> list[psutil.Process]:
        # Reading the parent also drops processes whose id was reused since the last look.
        processes = {process.pid: process for process in psutil.process_iter(["ppid", "status", "name"])}
        parents = {pid: int(process.info["ppid"]) for pid, process in processes.items()}
        me = os.getpid()
        seeds = {process.pid for process in self.seen if process.is_running()}
        seeds.update(self._in_session(processes))
        if self.other_children is not None:
            seeds.update(pid for pid in parents if parents[pid] == me and processes[pid] not in self.other_children)
        if thorough:
            seeds.update(pid for pid, process in processes.items() if self._is_marked(process))
        members = [processes[pid] for pid in descendants(parents, seeds, spare=ancestry(parents, me))]
        _reap((m for m in members if m.info["status"] == psutil.STATUS_ZOMBIE and parents[m.pid] == me), self.leader)
        return members

    def _in_session(self, pids: Iterable[int]) -> list[int]:
        """Processes in the session that the leader opened, also after its end."""
        # The kernel reuses an id only when no session of that name is left.
        if self.first is None or (psutil.pid_exists(self.first[0]) and self.leader is None):
            return []
        return [pid for pid in pids if session_of(pid) == self.first[0]]

    def _is_marked(self, process: psutil.Process) -> bool:
        variables = environment_of(process)
        work = variables.get("DAPO_WORK_DIR", "")
        return variables.get("DAPO_RUN_ID") == self.run_id and work.startswith(f"{self.folder}/")

    def _note(self, processes: Iterable[psutil.Process]) -> bool:
        """Remember `processes`; whether any is new."""
        new = [process for process in processes if process not in self.seen]
        for process in new:
            with suppress(psutil.Error):
                self.seen[process] = started_since_boot(process.pid)
        return bool(new)

    def _write(self) -> None:
        state = {
            "boot": boot_id(),
            "leader": self.first,
            "seen": sorted([process.pid, started] for process, started in self.seen.items()),
        }
        # A full disk must not end the run; the other signs remain.
        with suppress(OSError):
            write_atomically(self.record, json.dumps(state))


def _reap(zombies: Iterable[psutil.Process], leader: psutil.Process | None) -> None:
    for process in zombies:
        # The leader's exit code belongs to whoever started it.
        if process != leader:
            with suppress(ChildProcessError):
                os.waitpid(process.pid, os.WNOHANG)


def _until(done: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not done():
        if time.monotonic() >= deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True
