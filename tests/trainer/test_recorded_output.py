"""A pod's log in the object store: bounded, complete to the last line of a crash, and no reason to end."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from patience import patient

from dapo_core.cli.log_reading import StoredLog, stored_logs
from dapo_core.errors import StoreError
from dapo_core.objectstore import FolderStore
from dapo_core.run.last_words import read
from dapo_core.run.log_keys import KEPT_PARTS, PART_BYTES, PodLog
from dapo_trainer.pod.recorded_output import LogParts, delete_old_logs

RUN = "math-20261121-0412-x7k2"
HEAD = PodLog(2, "head", 0)


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    return FolderStore(tmp_path / "store")


def stored(store: FolderStore, log: PodLog = HEAD) -> bytes:
    return b"".join(StoredLog(store, RUN, log).read())


def keys(store: FolderStore) -> list[str]:
    return [info.key for info in store.list("")]


def test_b31_a_log_grows_in_parts(store: FolderStore) -> None:
    parts, source = LogParts(RUN, HEAD), StoredLog(store, RUN, HEAD)
    parts.add(b"one\n")
    parts.save(store)
    assert b"".join(source.read()) == b"one\n" and not parts.changed
    filling = b"x" * PART_BYTES
    parts.add(b"two\n" + filling)
    parts.save(store)
    assert b"".join(source.read()) == b"two\n" + filling
    assert keys(store) == [HEAD.key(RUN, 1), HEAD.key(RUN, 2)]
    assert stored(store) == b"one\ntwo\n" + filling


def test_b31_the_beginning_and_the_end_are_kept(store: FolderStore) -> None:
    parts = LogParts(RUN, HEAD)
    for number in range(1, KEPT_PARTS + 4):
        parts.add(f"{number:09d}\n".encode() * (PART_BYTES // 10) + b"\n" * (PART_BYTES % 10))
        if number % 2:
            parts.save(store)
    parts.add(b"the end")
    parts.save(store)
    assert len(keys(store)) == KEPT_PARTS
    text = stored(store)
    assert text.startswith(b"000000001\n") and text.endswith(b"the end")
    assert b"[parts 2 to 5 of this log are not kept]\n000000006\n" in text


class AwayStore(FolderStore):
    """Fails while `away`."""

    away = True

    def put_bytes(self, key: str, data: bytes) -> None:
        if self.away:
            raise StoreError("away")
        super().put_bytes(key, data)


def test_b31_what_a_store_missed_is_bounded_and_stored_later(tmp_path: Path) -> None:
    store, parts = AwayStore(tmp_path), LogParts(RUN, HEAD)
    for _ in range(3 * KEPT_PARTS):
        parts.add(b"y" * PART_BYTES)
        with pytest.raises(StoreError):
            parts.save(store)
    assert sum(len(part) for part in parts._unsaved.values()) <= KEPT_PARTS * PART_BYTES
    store.away = False
    parts.save(store)
    assert len(keys(store)) == KEPT_PARTS - 1 and not parts.changed  # the next one has not begun


def test_b31_the_logs_of_old_attempts_are_deleted_and_nothing_else(store: FolderStore) -> None:
    for attempt in (1, 5, 14, 15):
        store.put_bytes(PodLog(attempt, "trainer", 3).key(RUN, 1), b"log")
    other = [f"{RUN}/logs/attempt-1/notes.txt", f"{RUN}/samples/step-000001-attempt-1.parquet"]
    for key in other:
        store.put_bytes(key, b"")
    delete_old_logs(store, RUN, 15)
    assert [log.attempt for log in stored_logs(store, RUN)] == [14, 15]
    assert set(other) <= set(keys(store))


# A background job of a shell, such as a run of these tests may be, ignores SIGINT, and hands that on.
PROGRAM = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from dapo_trainer.pod import recorded_output
from dapo_trainer.process.liveness import DRIVER
recorded_output.SILENT_SECONDS, recorded_output.LOOK_SECONDS = 6.0, 0.5
recorded_output.record_output(os.environ)
print("begun", flush=True)
{}
"""
WAITS = "import time\nwhile True: time.sleep(1)"
# Keeps the output open after the child has ended, as Ray's daemons do.
LEAVES_A_PROCESS = "import subprocess\nprint('left', subprocess.Popen(['sleep', '600']).pid)\nsys.exit(30)"


def pod(store_url: str, code: str, **more: str) -> "subprocess.Popen[bytes]":
    variables = {"DAPO_ROLE": "trainer", "DAPO_INDEX": "3", "DAPO_ATTEMPT": "2", "DAPO_RUN_ID": RUN, **more}
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(code)],
        env={**os.environ, **variables, "DAPO_STORE_URL": store_url},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


@pytest.mark.parametrize(
    ("code", "exit_code", "printed"),
    [
        ("", 0, ""),
        ("sys.exit(30)", 30, ""),
        ("os._exit(15)", 15, ""),
        ("raise ValueError('last words')", 1, "ValueError: last words"),
        ("os.kill(os.getpid(), 9)", 137, ""),
        ("import ctypes; ctypes.string_at(0)", 139, ""),
        ("print('x' * 3_000_000)", 0, "xxx"),
        (LEAVES_A_PROCESS, 30, "left"),
    ],
    ids=["done", "an exit code", "at once", "an exception", "killed", "a crash in native code", "much", "left behind"],
)
def test_b31_the_log_of_a_pod_that_ends(code: str, exit_code: int, printed: str, store: FolderStore) -> None:
    output, _ = (process := pod(store.url, code)).communicate(timeout=patient(60))
    if code == LEAVES_A_PROCESS:
        os.kill(int(output.split()[-1]), signal.SIGKILL)
    assert process.returncode == exit_code
    assert output.startswith(b"begun\n") and printed.encode() in output
    assert stored(store, PodLog(2, "trainer", 3)) == output


@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGTERM, 143), (signal.SIGINT, 1)])
def test_b31_a_signal_reaches_the_program(number: signal.Signals, exit_code: int, store: FolderStore) -> None:
    process = pod(store.url, WAITS)
    assert process.stdout is not None and process.stdout.readline() == b"begun\n"
    process.send_signal(number)
    process.communicate(timeout=patient(60))
    assert process.returncode == exit_code or (number == signal.SIGINT and process.returncode == 130)


def test_b31_the_program_ends_with_its_recorder(store: FolderStore, tmp_path: Path) -> None:
    noted = tmp_path / "pid"
    process = pod(store.url, f"open({str(noted)!r}, 'w').write(str(os.getpid()))\n{WAITS}")
    end = time.monotonic() + patient(60)
    while not (noted.exists() and noted.read_text()) and time.monotonic() < end:
        time.sleep(0.05)
    process.kill()
    process.communicate(timeout=patient(60))  # its output ends when the program has ended too


@pytest.mark.parametrize("url", ["s3+odd://bucket", "file:///dev/null/nowhere"], ids=["no store", "cannot be written"])
def test_b31_a_store_that_fails_ends_no_pod(url: str) -> None:
    output, _ = (process := pod(url, "sys.exit(15)")).communicate(timeout=patient(60))
    assert process.returncode == 15
    assert b"begun\n" in output and b"This pod's log is not stored: " in output


COUNTS = """
import threading, time
def count():
    for _ in range({}):
        DRIVER.count()
        time.sleep(0.1)
    {}
threading.Thread(target=count, daemon=True).start()
time.sleep({})
"""


# What a driver does, its exit code, and the reason it leaves.
DRIVERS = {
    "its threads stand still": (COUNTS.format(3, "pass", 600), 137, "Stalled"),
    "it waits for its stores": (COUNTS.format(3, "DRIVER.stop()", 9), 0, None),
    "it runs": (COUNTS.format(10_000, "pass", 9), 0, None),
    "another role, which does not count": ("import time; time.sleep(9)", 0, None),
}


@pytest.fixture(scope="module")
def drivers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, tuple[Path, "subprocess.Popen[bytes]"]]]:
    """The folder and the process of each. They are begun together, since all they do is wait."""
    folder = tmp_path_factory.mktemp("drivers")
    begun = {}
    for number, (name, (code, *_)) in enumerate(DRIVERS.items()):
        own = folder / str(number)
        own.mkdir()
        begun[name] = own, pod((own / "store").as_uri(), code, DAPO_TERMINATION_LOG=str(own / "words"))
    yield begun
    for _, process in begun.values():
        process.kill()  # where no test has waited for it
        process.communicate()


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_driver_whose_threads_stand_still_is_ended(
    driver: str, drivers: dict[str, tuple[Path, "subprocess.Popen[bytes]"]]
) -> None:
    folder, process = drivers[driver]
    output, _ = process.communicate(timeout=patient(120))
    _, exit_code, reason = DRIVERS[driver]
    words = read(folder / "words")
    assert (process.returncode, words.reason if words else None) == (exit_code, reason), output
    assert (b"none of its threads has run" in output) is (reason is not None)
