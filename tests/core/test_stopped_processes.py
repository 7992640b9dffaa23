"""Processes that are stopped for some time: found by their title, and going on afterwards, whoever asked is gone."""

import inspect
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import psutil
import pytest
from patience import patient

from dapo_core import stopped_processes
from dapo_core.stopped_processes import NOTHING_THERE, processes, stop

TITLE = "a-title-of-this-test"
SOURCE = inspect.getsource(stopped_processes)


@pytest.fixture
def victim() -> Iterator[psutil.Process]:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", TITLE]) as process:
        yield psutil.Process(process.pid)
        process.kill()


def eventually(holds: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + patient(20)
    while not holds():
        assert time.monotonic() < end, what
        time.sleep(0.01)


def test_processes_are_found_by_their_title(victim: psutil.Process) -> None:
    assert processes(TITLE) == [victim.pid]
    everything = processes()
    assert victim.pid in everything
    assert not {1, psutil.Process().pid, psutil.Process().ppid()} & set(everything)


@pytest.mark.parametrize("share", [1.0, 0.5], ids=["all the time", "half of it"])
def test_a_stopped_process_goes_on(victim: psutil.Process, share: float) -> None:
    stop([victim.pid], 0.3, share)
    eventually(lambda: victim.status() != psutil.STATUS_STOPPED, "it goes on")


def test_in_a_container_it_goes_on_after_who_asked_is_gone(victim: psutil.Process) -> None:
    """As `kubectl exec` runs it: only the source, and it returns at once."""
    script = SOURCE.replace('ENGINE = "EngineCore"', f'ENGINE = "{TITLE}"')
    asked = subprocess.run([sys.executable, "-c", script, "engine", "5", "1"], capture_output=True, text=True)
    # Its own command has the title, too: it spares itself.
    assert (asked.returncode, asked.stdout, asked.stderr) == (0, "1\n", "")
    eventually(lambda: victim.status() == psutil.STATUS_STOPPED, "it is stopped")
    assert processes(TITLE) == [victim.pid], "who stops it is not stopped by another fault"
    eventually(lambda: victim.status() != psutil.STATUS_STOPPED, "it goes on")


def test_without_an_engine_it_says_so() -> None:
    script = SOURCE.replace('ENGINE = "EngineCore"', 'ENGINE = "".join(["nothing ", "is called so"])')
    asked = subprocess.run([sys.executable, "-c", script, "engine", "2", "1"], capture_output=True)
    assert asked.returncode == NOTHING_THERE
