"""A copy of the fork server becomes the process that was asked for, as a new interpreter would."""

import atexit
import builtins
import fcntl
import gc
import os
import runpy
import signal
import sys
import threading
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.spawn import set_executable
from pathlib import Path
from typing import Any, Final

PROC: Final = Path("/proc")
LAUNCHER: Final = "DAPO_FORK_LAUNCHER"  # in the environment below a server: the program that asks it
# Flags without a meaning after the start of the interpreter. Any other makes the launcher start a new one.
FLAGS: Final = frozenset({"-u", "-B", "-s"})


@dataclass(frozen=True)
class Request:
    """A process that is wanted: `arguments` are those of a Python command."""

    arguments: list[str]
    environment: dict[str, str]
    folder: str
    blocked: list[int]
    files: list[int]
    niceness: int


class NeedsInterpreter(Exception):
    """A command that needs an interpreter of its own."""


@dataclass(frozen=True)
class Command:
    """What a Python command line asks for. `kind` is `file`, `-m` or `-c`."""

    kind: str
    subject: str
    arguments: list[str]


def parse(arguments: Sequence[str]) -> Command:
    rest = list(arguments)
    while rest and rest[0] in FLAGS:
        rest.pop(0)
    if not rest:
        raise NeedsInterpreter("no program")
    if rest[0] in ("-m", "-c"):
        if len(rest) < 2:
            raise NeedsInterpreter(f"{rest[0]} without a program")
        return Command(rest[0], rest[1], rest[2:])
    if rest[0].startswith("-"):
        raise NeedsInterpreter(f"flag {rest[0]}")
    return Command("file", rest[0], rest[1:])


def take_over(request: Request, received: Sequence[int]) -> None:
    """Make this process what a new one would be: its files, signals, environment and folder."""
    high = max(*request.files, *received, 2) + 1
    # First out of the way: a file's number here may be another one's there.
    moved = [_dup_above(number, high) for number in received]
    for number in received:
        os.close(number)
    for number, target in zip(moved, request.files, strict=True):
        os.dup2(number, target, inheritable=True)
        os.close(number)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, request.blocked)
    if (more := request.niceness - os.getpriority(os.PRIO_PROCESS, 0)) > 0:
        os.nice(more)
    os.chdir(request.folder)
    _set_environment(request.environment)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    gc.enable()
    if LAUNCHER in os.environ:
        set_executable(os.environ[LAUNCHER])  # what this process starts by multiprocessing is forked as well


def _set_environment(asked: Mapping[str, str]) -> None:
    """Change what differs, and nothing else: titles are written where the first of the old variables lie."""
    for name in set(os.environ) - set(asked):
        del os.environ[name]
    os.environ.update({name: value for name, value in asked.items() if os.environ.get(name) != value})


def _dup_above(number: int, lowest: int) -> int:
    return fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, lowest)


def set_name(name: str) -> None:
    """What a list of processes shows beside the id. Titles are left to Ray and vLLM: each sets one in a way of its own,
    and the first to do so, in a process or the one it was copied from, is the only one that can."""
    (PROC / "self" / "comm").write_text(name)


def run(command: Command) -> int:
    """The exit code of `command`, carried out in this process to the last of its exit handlers."""
    code = _exit_code(partial(_entry(command), command))
    _exit_code(threading._shutdown)  # type: ignore[attr-defined]
    _exit_code(atexit._run_exitfuncs)
    return code


def _entry(command: Command) -> Callable[[Command], None]:
    return {"file": run_file, "-m": _run_module, "-c": _run_text}[command.kind]


def _exit_code(action: Callable[[], Any]) -> int:
    try:
        action()
    except SystemExit as end:
        if isinstance(end.code, int):
            return end.code & 0xFF
        if end.code is not None:
            print(end.code, file=sys.stderr)
        return 0 if end.code is None else 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
        return 1
    return 0


def _main_module(file: str | None) -> dict[str, Any]:
    module = types.ModuleType("__main__")
    vars(module).update({"__builtins__": builtins} | ({} if file is None else {"__file__": file}))
    sys.modules["__main__"] = module
    return vars(module)


def run_file(command: Command) -> None:
    """Do what a new interpreter does with the program `command.subject`, in this process."""
    sys.argv = [command.subject, *command.arguments]
    sys.path[0] = str(Path(command.subject).parent.resolve())
    code = compile(Path(command.subject).read_bytes(), command.subject, "exec")
    exec(code, _main_module(command.subject))


def _run_module(command: Command) -> None:
    sys.argv = [command.subject, *command.arguments]
    sys.path[0] = os.getcwd()
    runpy.run_module(command.subject, run_name="__main__", alter_sys=True)


def _run_text(command: Command) -> None:
    sys.argv = ["-c", *command.arguments]
    sys.path[0] = ""
    exec(compile(command.subject, "<string>", "exec"), _main_module(None))


def flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            pass
