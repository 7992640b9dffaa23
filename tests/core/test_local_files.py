"""Files that several processes use: replaced in one step, and locked."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dapo_core.local_files import lock_file, write_atomically


@pytest.mark.parametrize("sync", [False, True], ids=["no sync", "sync"])
@pytest.mark.parametrize("content", ["new", b"new"], ids=["text", "bytes"])
def test_a_file_is_replaced_and_nothing_is_left_beside_it(content: str | bytes, sync: bool, tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    path.write_text("old")
    write_atomically(path, content, sync=sync)
    assert path.read_text() == "new" and list(tmp_path.iterdir()) == [path]


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "folder"
    (path / "inside").mkdir(parents=True)
    with pytest.raises(OSError, match="directory"):
        write_atomically(path, "new")
    assert list(tmp_path.iterdir()) == [path]


def test_a_lock_is_held_until_its_descriptor_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    held = lock_file(path)
    with pytest.raises(BlockingIOError):
        lock_file(path)
    os.close(held)
    os.close(lock_file(path))


def test_a_lock_ends_with_its_process(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    code = f"from pathlib import Path; from dapo_core.local_files import lock_file; lock_file(Path({str(path)!r}))"
    subprocess.run([sys.executable, "-c", code], check=True)
    os.close(lock_file(path))


def test_a_child_does_not_keep_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    held = lock_file(path)
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        os.close(held)
        os.close(lock_file(path))
    finally:
        child.communicate()
