"""Which processes belong to a run: ancestry and descent, and identities that outlive a supervisor."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from patience import patient

from dapo_trainer.process.processes import ancestry, boot_id, descendants, find, has_ended, send, started_since_boot
from dapo_trainer.process.run_folder import RunFolder
from dapo_trainer.process.tree import ProcessTree

#   1 - 10 (shell) - 20 (supervisor) - 30 (trainer) - 31 (ray) - 32 (worker)
#   1 - 40 (orphan)   1 - 50 (a stranger)
PARENTS = {1: 0, 10: 1, 20: 10, 30: 20, 31: 30, 32: 31, 40: 1, 50: 1}


def test_descendants() -> None:
    assert descendants(PARENTS, [30]) == {30, 31, 32}


def test_what_is_spared_spares_what_is_below_it() -> None:
    assert descendants(PARENTS, [10], spare={20}) == {10}


def test_ancestry_ends_at_the_top() -> None:
    assert ancestry(PARENTS, 20) == {20, 10, 1}


@pytest.fixture
def orphan() -> Iterator[psutil.Process]:
    """A process whose parent has ended, in the session that the parent opened."""
    code = (
        "import os, subprocess, sys; "
        "print(os.getpid(), subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'],"
        " stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).pid)"
    )
    started = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, start_new_session=True)
    process = psutil.Process(int(started.stdout.split()[1]))
    yield process
    with suppress(psutil.NoSuchProcess):
        process.kill()


def left_by(run: RunFolder, leader: tuple[int, float] | None, *seen: tuple[int, float], boot: str = "") -> ProcessTree:
    """The tree after a supervisor that wrote this."""
    run.processes.write_text(json.dumps({"boot": boot or boot_id(), "leader": leader, "seen": seen}))
    return ProcessTree.of(run)


class TestIdentity:
    def test_a_process_is_found_by_its_start(self, orphan: psutil.Process) -> None:
        assert find(orphan.pid, started_since_boot(orphan.pid)) == orphan

    def test_a_later_process_of_the_same_id_is_another(self, orphan: psutil.Process) -> None:
        assert find(orphan.pid, started_since_boot(orphan.pid) - 60) is None

    def test_only_a_living_process_is_signalled(self, orphan: psutil.Process) -> None:
        assert send(orphan, signal.SIGKILL)
        orphan.wait(patient(10))
        assert not send(orphan, signal.SIGKILL)


class TestWhatASupervisorLeft:
    def test_a_process_seen_is_of_the_run(self, tmp_path: Path, orphan: psutil.Process) -> None:
        tree = left_by(RunFolder(tmp_path), None, (orphan.pid, started_since_boot(orphan.pid)))
        assert [process.pid for process in tree.alive()] == [orphan.pid]

    def test_a_reused_id_is_not_the_process_seen(self, tmp_path: Path, orphan: psutil.Process) -> None:
        assert left_by(RunFolder(tmp_path), None, (orphan.pid, started_since_boot(orphan.pid) - 60)).alive() == []

    def test_ids_of_another_boot_are_nothing(self, tmp_path: Path, orphan: psutil.Process) -> None:
        seen = (orphan.pid, started_since_boot(orphan.pid))
        assert left_by(RunFolder(tmp_path), None, seen, boot="another").alive() == []

    def test_a_session_outlives_its_leader(self, tmp_path: Path, orphan: psutil.Process) -> None:
        leader = os.getsid(orphan.pid)
        assert not psutil.pid_exists(leader)
        tree = left_by(RunFolder(tmp_path), (leader, started_since_boot(orphan.pid)))
        assert [process.pid for process in tree.alive()] == [orphan.pid]

    def test_a_reused_id_is_no_session_of_ours(self, tmp_path: Path) -> None:
        process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
        try:
            started = started_since_boot(process.pid)
            assert [p.pid for p in left_by(RunFolder(tmp_path), (process.pid, started)).alive()] == [process.pid]
            assert left_by(RunFolder(tmp_path), (process.pid, started - 60)).alive() == []
        finally:
            process.kill()
            process.wait()


# The kernel calls it a zombie although a thread runs, as with a killed one whose other threads take longer to end.
HALF_ENDED = """
import ctypes, threading, time
threading.Thread(target=time.sleep, args=(600,)).start()
ctypes.CDLL(None).pthread_exit(None)
"""


def test_a_process_has_ended_with_its_last_thread(tmp_path: Path) -> None:
    """Until then it holds its memory and its locks: the next attempt must not begin."""
    process = subprocess.Popen([sys.executable, "-c", HALF_ENDED], start_new_session=True)
    try:
        seen = psutil.Process(process.pid)
        deadline = time.monotonic() + patient(30)
        while seen.status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        tree = left_by(RunFolder(tmp_path), (process.pid, started_since_boot(process.pid)))
        assert tree.alive() == [seen] and tree.leads() and not has_ended(seen)
        assert tree.end(limit_seconds=patient(30)) == []
        assert has_ended(seen) and not tree.leads()
    finally:
        process.kill()
        process.wait()


def test_a_name_may_hold_anything(tmp_path: Path) -> None:
    odd = tmp_path / "ray::A) (1) "
    odd.symlink_to("/bin/sleep")
    process = subprocess.Popen([odd, "600"])
    try:
        tree = left_by(RunFolder(tmp_path), None, (process.pid, started_since_boot(process.pid)))
        assert [(p.pid, p.info["name"]) for p in tree.alive()] == [(process.pid, odd.name)]
    finally:
        process.kill()
        process.wait()
