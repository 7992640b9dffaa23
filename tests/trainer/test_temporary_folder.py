"""The temporary folder of an attempt: removed with it, or by the next one, and short enough for sockets."""

import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from patience import patient

from dapo_trainer.process.temporary_folder import (
    LONGEST_SOCKET,
    PREFIX,
    remove_leftovers,
    short_enough,
    temporary_folder,
)

HOLD = """
import subprocess, sys
from pathlib import Path
from dapo_trainer.process.temporary_folder import temporary_folder
with temporary_folder(Path(sys.argv[1])) as folder:
    if "child" in sys.argv:
        subprocess.Popen([sys.executable, "-c", "input()"], stdout=subprocess.DEVNULL, pass_fds=[folder.lock])
    print(folder.path, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def machines() -> Iterator[Path]:
    """As short as a machine's own: pytest's folders have long paths."""
    with tempfile.TemporaryDirectory(prefix="t-", dir="/tmp") as folder:
        yield Path(folder)


def _hold(machines: Path, *with_: str) -> tuple["subprocess.Popen[str]", Path]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(machines), *with_], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_the_first_variable_stays_the_first(machines: Path) -> None:
    """setproctitle finds the room for an engine's title by it."""
    with temporary_folder(machines) as folder:
        given = folder.environment({"FIRST": "1", "TMPDIR": "/elsewhere"})
    assert next(iter(given)) == "FIRST"
    assert given["TMPDIR"] == str(folder.path) and given["TORCHINDUCTOR_CACHE_DIR"]


def test_it_goes_with_what_is_in_it(machines: Path) -> None:
    with temporary_folder(machines) as folder:
        assert folder.path.stat().st_mode & 0o777 == 0o700
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(folder.path / "socket"))
        (folder.path / "ray").mkdir()
        (folder.path / "ray" / "session_latest").symlink_to("session_2026")
    listener.close()
    assert list(machines.iterdir()) == []


def test_a_leftover_goes_with_the_next_one_and_one_that_is_held_stays(machines: Path) -> None:
    dead, left = _hold(machines)
    alive, held = _hold(machines)
    dead.kill()
    dead.communicate()
    (machines / "dapo-other").mkdir()
    with temporary_folder(machines) as folder:
        assert set(machines.iterdir()) == {held, folder.path, machines / "dapo-other"} and left.name.startswith(PREFIX)
    alive.communicate()
    assert list(machines.iterdir()) == [machines / "dapo-other"]


def test_a_leftover_that_is_held_at_the_start_goes_at_the_end(machines: Path) -> None:
    dying, held = _hold(machines)
    with temporary_folder(machines):
        dying.kill()
        dying.communicate()
        assert held.exists()
    assert list(machines.iterdir()) == []


def test_what_only_looks_like_a_leftover_stays(machines: Path, tmp_path: Path) -> None:
    """Anybody can make it."""
    (machines / f"{PREFIX}link").symlink_to(tmp_path)
    remove_leftovers(machines)
    assert (machines / f"{PREFIX}link").is_symlink() and list(tmp_path.iterdir()) == []


def test_a_child_that_outlives_its_parent_keeps_it(machines: Path) -> None:
    parent, held = _hold(machines, "child")
    parent.kill()
    parent.wait()
    remove_leftovers(machines)
    assert held.exists()
    parent.communicate()  # ends the child too
    deadline = time.monotonic() + patient(30)
    while held.exists():
        assert time.monotonic() < deadline
        remove_leftovers(machines)
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("parent", "used"),
    [("/tmp", "/tmp"), ("/var/tmp/x", "/var/tmp/x"), ("/home/somebody/scratch", "/tmp"), ("/ü" * 8, "/tmp")],
    ids=["the default", "a short one", "too long", "bytes count, not letters"],
)
def test_sockets_have_paths_that_are_short_enough(parent: str, used: str) -> None:
    assert short_enough(Path(parent)) == Path(used)


def test_variables(machines: Path) -> None:
    """Everything temporary goes there, but compiled kernels, which later runs use again."""
    with temporary_folder(machines) as folder:
        assert folder.environment({"TMPDIR": "/elsewhere", "A": "1"})["TMPDIR"] == str(folder.path)
        assert folder.path not in Path(folder.environment({})["TORCHINDUCTOR_CACHE_DIR"]).parents
        assert folder.environment({"TORCHINDUCTOR_CACHE_DIR": "/kernels"})["TORCHINDUCTOR_CACHE_DIR"] == "/kernels"


def test_what_ray_logged_is_kept(machines: Path, tmp_path: Path) -> None:
    with temporary_folder(machines) as folder:
        folder.keep_logs(tmp_path / "none")
        logs = folder.path / "ray" / "session_1" / "logs"
        logs.mkdir(parents=True)
        (logs / "raylet.err").write_text("out of memory")
        (folder.path / "ray" / "session_latest").symlink_to("session_1")
        folder.keep_logs(tmp_path / "ray")
    assert not (tmp_path / "none").exists()
    assert (tmp_path / "ray" / "raylet.err").read_text() == "out of memory"


def test_the_limit_is_the_kernels(machines: Path) -> None:
    with socket.socket(socket.AF_UNIX) as one, pytest.raises(OSError, match="too long"):
        one.bind(str(machines) + "/" + "a" * (LONGEST_SOCKET - len(str(machines))))
