"""Commands that a fork server carries out, against what a new interpreter does with them."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from patience import patient

# What the imports stand for: something that is in the server's memory alone.
SERVER = """
import signal, socket, sys, time
from pathlib import Path
from dapo_trainer.process import fork_server
listener, program = fork_server.listen(Path(sys.argv[1]))
sys.imported = "once"
signal.signal(signal.SIGTERM, print)  # the handler of this process alone
assert fork_server.start(listener)
print(program, flush=True)
sys.stdin.read()
"""
FORKED = "import sys; assert sys.imported == 'once'; "
NEW = "import sys; assert not hasattr(sys, 'imported'); "


@pytest.fixture
def server(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    folder = tmp_path / "s"
    folder.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        yield process
        process.kill()


@pytest.fixture
def python(server: subprocess.Popen[str]) -> str:
    """The program that takes Python's place."""
    assert server.stdout is not None
    return server.stdout.readline().strip()


def run(python: str, *arguments: str, **more: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run([python, *arguments], capture_output=True, text=True, timeout=patient(30), **more)


def until(holds: Any, what: str) -> None:
    deadline = time.monotonic() + patient(20)
    while not holds():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def test_text_sees_its_arguments_environment_folder_and_input(python: str, tmp_path: Path) -> None:
    text = FORKED + "import os, json; print(json.dumps([sys.argv, os.environ['A'], os.getcwd(), sys.stdin.read()]))"
    done = run(python, "-u", "-c", text, "x", "-m", cwd=tmp_path, env={**os.environ, "A": "é"}, input="in")
    assert json.loads(done.stdout) == [["-c", "x", "-m"], "é", str(tmp_path), "in"], done.stderr


def test_a_file_and_a_module_are_the_main_module(python: str, tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("VALUE = 7")
    script = tmp_path / "script.py"
    script.write_text(
        FORKED + "import beside, __main__; print(__name__, __main__.__file__, beside.VALUE, sys.argv[1:])"
    )
    assert run(python, str(script), "a").stdout.split() == ["__main__", str(script), "7", "['a']"]
    assert run(python, "-m", "script", "b", cwd=tmp_path).stdout.split() == ["__main__", str(script), "7", "['b']"]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("pass", 0),
        ("sys.exit(3)", 3),
        ("sys.exit('why')", 1),
        ("1 / 0", 1),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -9),
        ("import os; os.abort()", -6),
    ],
)
def test_the_launcher_ends_as_its_child_does(python: str, text: str, code: int) -> None:
    assert run(python, "-c", FORKED + text).returncode == code


def test_exit_handlers_and_threads_are_waited_for(python: str) -> None:
    text = FORKED + (
        "import atexit, threading, time; atexit.register(print, 'last');"
        "threading.Thread(target=lambda: (time.sleep(0.2), print('thread'))).start(); print('main')"
    )
    assert run(python, "-c", text).stdout.split() == ["main", "thread", "last"]


@pytest.mark.parametrize(
    ("handler", "code"),
    [
        pytest.param("lambda *_: sys.exit(9)", 9, id="its own handler"),
        pytest.param("signal.getsignal(15)", -signal.SIGTERM, id="none, unlike the server's parent"),
    ],
)
def test_signals_reach_the_child(python: str, handler: str, code: int) -> None:
    text = FORKED + f"import signal, time; signal.signal(15, {handler}); print('up', flush=True); time.sleep(60)"
    with subprocess.Popen([python, "-c", text], stdout=subprocess.PIPE, text=True) as launcher:
        assert launcher.stdout is not None and launcher.stdout.readline() == "up\n"
        launcher.send_signal(signal.SIGTERM)
        assert launcher.wait(patient(20)) == code


def test_a_killed_launcher_takes_the_child_along(python: str) -> None:
    text = FORKED + "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
    with subprocess.Popen([python, "-c", text], stdout=subprocess.PIPE, text=True) as launcher:
        assert launcher.stdout is not None
        child = int(launcher.stdout.readline())
        assert child != launcher.pid and psutil.pid_exists(child)
        launcher.kill()
    until(lambda: not psutil.pid_exists(child), "the child lives on")


def test_the_blocked_signals_are_those_of_whoever_asked(python: str) -> None:
    text = FORKED + "import signal; print(sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())))"
    blocked = lambda: signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # noqa: E731
    assert "SIGINT" in run(python, "-c", text, preexec_fn=blocked).stdout
    assert run(python, "-c", text).stdout == "[]\n"


def test_open_files_are_passed_on_and_closed_with_the_child(python: str) -> None:
    reader, writer = os.pipe()
    text = FORKED + f"import os; os.write({writer}, b'word')"
    done = run(python, "-c", text, pass_fds=[writer])
    os.close(writer)
    assert done.returncode == 0, done.stderr
    assert os.read(reader, 10) == b"word"
    assert os.read(reader, 10) == b""
    os.close(reader)


SPAWN = """
import multiprocessing, os, sys
def work(pipe, event):
    pipe.send([sys.imported, os.getpid(), multiprocessing.current_process().name])
    event.wait()
    sys.exit(5)
if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    mine, other = context.Pipe()
    event = context.Event()
    process = context.Process(target=work, args=(other, event), name="engine")
    process.start()
    print(*mine.recv(), process.pid)
    event.set()
    process.join()
    print(process.exitcode)
"""


def test_processes_of_multiprocessing_are_forked_too(python: str, tmp_path: Path) -> None:
    script = tmp_path / "spawns.py"
    script.write_text(SPAWN)
    done = run(python, str(script), env={**os.environ, "DAPO_FORK_LAUNCHER": python})
    words = done.stdout.split()
    assert (words[0], words[2], words[4]) == ("once", "engine", "5"), done.stderr
    assert words[1] != words[3]  # there is a launcher between


def test_a_process_of_multiprocessing_ends_with_its_parent(python: str, tmp_path: Path) -> None:
    script = tmp_path / "spawns.py"
    script.write_text(SPAWN.replace("    event.set()\n    process.join()", "    sys.stdout.flush(); process.join()"))
    environment = {**os.environ, "DAPO_FORK_LAUNCHER": python}
    with subprocess.Popen([python, str(script)], env=environment, stdout=subprocess.PIPE, text=True) as launcher:
        assert launcher.stdout is not None
        child = int(launcher.stdout.readline().split()[1])
        launcher.kill()
    until(lambda: not psutil.pid_exists(child), "the child lives on")


@pytest.mark.parametrize(
    ("flags", "environment"),
    [(["-X", "utf8"], {}), (["-I"], {}), ([], {"OMP_NUM_THREADS": "77"}), ([], {"LD_PRELOAD": "/lib/other.so"})],
    ids=["a flag", "isolated", "another count of threads", "a library to load first"],
)
def test_what_needs_an_interpreter_of_its_own_gets_one(
    python: str, flags: list[str], environment: dict[str, str]
) -> None:
    done = run(python, *flags, "-c", NEW, env={**os.environ, **environment})
    assert done.returncode == 0, done.stderr


def test_without_a_server_there_is_python(server: subprocess.Popen[str], python: str) -> None:
    (fork_server,) = psutil.Process(server.pid).children()
    server.kill()
    until(lambda: not fork_server.is_running(), "the server outlives the process it was made for")
    assert run(python, "-c", NEW + "sys.exit(4)").returncode == 4


def test_a_process_outlives_its_server_and_its_launcher_waits_for_it(
    server: subprocess.Popen[str], python: str
) -> None:
    text = FORKED + "print('up', flush=True); sys.stdin.read()"
    with subprocess.Popen([python, "-c", text], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as launcher:
        assert launcher.stdout is not None and launcher.stdin is not None
        launcher.stdout.readline()
        server.kill()
        time.sleep(0.3)
        assert launcher.poll() is None
        launcher.stdin.close()
        assert launcher.wait(patient(20)) == 255


def test_no_server_is_forked_off_a_process_with_threads(tmp_path: Path) -> None:
    text = SERVER.replace(
        "sys.imported", "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start(); sys.i"
    )
    done = subprocess.run(
        [sys.executable, "-c", text.replace("assert fork", "assert not fork"), str(tmp_path)],
        stdin=subprocess.DEVNULL, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
