"""All processes of one run: kept count of while it runs, and ended to the last one."""

import json
import os
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from dapo_trainer.process.kinship import ancestry, family, in_session, still_there
from dapo_trainer.process.run_folder import RunFolder, replace_text
from dapo_trainer.process.table import Identity, Process, boot_id, environment, read, send, table

POLL_SECONDS = 0.05


@dataclass
class ProcessTree:
    """The processes of a run. What was seen is also written to a file, for the supervisor after this one."""

    run_id: str
    folder: Path
    record: Path
    leader: Identity | None = None
    seen: set[Identity] = field(default_factory=set)
    # Orphans come to a supervisor that is their subreaper; children it had before are not the run's.
    mine_before: set[Identity] | None = None

    @classmethod
    def of(cls, run: RunFolder) -> "ProcessTree":
        """The tree as an earlier supervisor of the run left it; empty for a new run."""
        tree = cls(run.run_id, run.path, run.processes)
        with suppress(OSError, ValueError, KeyError, TypeError):
            left = json.loads(run.processes.read_text())
            if left["boot"] == boot_id():
                tree.leader = Identity(*left["leader"])
                tree.seen = {Identity(*entry) for entry in left["seen"]}
        return tree

    def adopt_orphans(self) -> None:
        """From now on every new child of this process counts as the run's."""
        self.mine_before = {row.identity for row in table().values() if row.parent == os.getpid()}

    def started(self, pid: int) -> None:
        """A new attempt's first process; the ones before it are gone."""
        row = read(pid)
        self.leader = row.identity if row else None
        self.seen = {row.identity} if row else set()
        self._write()

    def look(self) -> None:
        """Note the processes that are there now and reap orphans that ended; cheap enough for once a second."""
        now = {row.identity for row in self._members(thorough=False)}
        if not now <= self.seen:
            self.seen |= now
            self._write()

    def alive(self) -> list[Process]:
        """Every living process of the run, by all signs."""
        return [row for row in self._members(thorough=True) if row.state != "Z"]

    def leads(self) -> bool:
        """Whether the attempt's first process still runs."""
        row = read(self.leader.pid) if self.leader else None
        return row is not None and row.identity == self.leader and row.state != "Z"

    def end(self, patience_seconds: float = 0.0, limit_seconds: float = 30.0) -> list[Process]:
        """Wait `patience_seconds` for the processes to go, then SIGKILL them until none is left.

        Returns those that the kernel would not end within `limit_seconds` (stuck in a driver), normally none.
        """
        _until(lambda: not self.alive(), patience_seconds)

        def none_left() -> bool:
            rows = self.alive()
            for row in rows:
                send(row.identity, signal.SIGKILL)
            return not rows

        return [] if _until(none_left, limit_seconds) else self.alive()

    def _members(self, *, thorough: bool) -> list[Process]:
        rows = table()
        me = os.getpid()
        seeds = set(still_there(rows, self.seen))
        if self.leader:
            seeds.update(in_session(rows, self.leader))
        if self.mine_before is not None:
            seeds.update(r.pid for r in rows.values() if r.parent == me and r.identity not in self.mine_before)
        if thorough:
            seeds.update(self._marked(rows))
        found = family(rows, seeds, spare=ancestry(rows, me))
        _reap((row for row in found if row.state == "Z" and row.parent == me), besides=self.leader)
        return found

    def _marked(self, pids: Iterable[int]) -> list[int]:
        run, folder = f"DAPO_RUN_ID={self.run_id}".encode(), f"DAPO_WORK_DIR={self.folder}/".encode()

        def ours(entries: set[bytes]) -> bool:
            return run in entries and any(entry.startswith(folder) for entry in entries)

        return [pid for pid in pids if ours(environment(pid))]

    def _write(self) -> None:
        state = {
            "boot": boot_id(),
            "leader": [self.leader.pid, self.leader.started] if self.leader else None,
            "seen": sorted([identity.pid, identity.started] for identity in self.seen),
        }
        # A full disk must not end the run; the other signs of kinship remain.
        with suppress(OSError):
            replace_text(self.record, json.dumps(state))


def _reap(zombies: Iterable[Process], besides: Identity | None) -> None:
    for row in zombies:
        # The leader's exit code belongs to whoever started it.
        if row.identity != besides:
            with suppress(ChildProcessError):
                os.waitpid(row.pid, os.WNOHANG)


def _until(done: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not done():
        if time.monotonic() >= deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True
