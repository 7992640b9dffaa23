"""Processes that are forked, with the slow imports done, where a new interpreter would be started.

verl, vLLM and torch take a process ten seconds of a processor to import, and a run has half a dozen such processes.
Here they are imported once, in a process with one thread, which is copied for each that Ray or multiprocessing starts:
`fork_launcher` takes their place and asks the server. Imported objects are shared between the copies by the kernel.
"""

import gc
import json
import logging
import os
import selectors
import signal
import socket
import struct
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final, NoReturn

from dapo_trainer.process import fork_launcher
from dapo_trainer.process.fork_child import (
    LAUNCHER,
    PROC,
    Command,
    NeedsInterpreter,
    Request,
    flush,
    parse,
    run,
    set_name,
    take_over,
)
from dapo_trainer.process.signals import signal_at_death_of

log = logging.getLogger(__name__)

NAME: Final = "dapo-fork-serve"  # of a server's process: the kernel keeps fifteen letters
MOST_FILES: Final = 253  # the kernel's limit for one message
REQUEST_SECONDS: Final = 10.0
AT_HOME_IN_FORKS: Final = frozenset({"jemalloc_bg_thd"})  # its library ends it before a fork and starts it after
ALLOCATORS: Final = ("libjemalloc", "libtcmalloc")  # to be loaded first, where possible, for speed
# Read once, by libraries as they are loaded or by the interpreter as it starts.
READ_AT_START: Final = (
    *("PYTHONPATH", "PYTHONHOME", "PYTHONHASHSEED", "PYTHONOPTIMIZE", "PYTHONMALLOC", "PYTHONUTF8"),
    *("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "MALLOC_", "LD_LIBRARY_PATH"),
)


def listen(folder: Path) -> tuple[socket.socket, Path]:
    """A socket in `folder`, which is this user's alone, and the program to start instead of Python."""
    path = folder / "socket"
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    listener.listen(128)
    program = folder / "python"
    words = [sys.executable, "-I", "-S", fork_launcher.__file__, str(path)]
    program.write_text("#!/bin/sh\nexec " + " ".join(f"'{word}'" for word in words) + ' "$@"\n')
    program.chmod(0o700)
    return listener, program


def start(listener: socket.socket, in_copy: Callable[[], None] = lambda: None) -> bool:
    """Fork a server that answers on `listener` until this process ends, with what is imported by now.

    `in_copy` is called in each process that is started, with its environment in place: for what libraries read from it
    as they were imported. Returns False, with a warning and no server, when this process has several threads: a lock
    that one of them holds would stay locked in every copy.
    """
    threads = [(task / "comm").read_text().strip() for task in (PROC / "self" / "task").iterdir()]
    if len([name for name in threads if name not in AT_HOME_IN_FORKS]) > 1:
        log.warning("Imports started threads (%s): processes are started one by one.", ", ".join(threads))
        return False
    gc.collect()
    gc.freeze()  # a collection in a copy would write to, and so duplicate, what all share
    sys.stdout.flush()
    sys.stderr.flush()
    _in_child(_Server(listener, in_copy).run)
    listener.close()
    return True


def _in_child(action: Callable[[], object]) -> None:
    """Do `action` in a child of this process that ends with it, and go on at once."""
    parent = os.getpid()
    if os.fork() != 0:
        return
    try:
        signal_at_death_of(parent, signal.SIGKILL)
        action()
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(1)


@contextmanager
def as_python() -> Iterator[None]:
    """Processes that are started by `sys.executable` in this block are forked, where there is a server."""
    before = sys.executable
    sys.executable = os.environ.get(LAUNCHER, before)
    try:
        yield
    finally:
        sys.executable = before


class _Server:
    """The process that is copied. It has one thread, and waits for requests and for the ends of its children."""

    def __init__(self, listener: socket.socket, in_copy: Callable[[], None]) -> None:
        self._listener, self._in_copy = listener, in_copy
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ, self._accept)
        self._asked_by: dict[int, socket.socket] = {}  # by the child's process id
        self._environment = dict(os.environ)

    def run(self) -> NoReturn:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # here and in every copy: its parent may have a handler
        set_name(NAME)
        while True:
            for key, _ in self._selector.select():
                key.data()

    def _accept(self) -> None:
        link, _ = self._listener.accept()
        received: list[int] = []
        try:
            link.settimeout(REQUEST_SECONDS)
            if _peer(link) != os.getuid():
                raise NeedsInterpreter("another user's")
            request = _receive(link, received)
            command = parse(request.arguments)
            check_environment(request.environment, self._environment)
            child = os.fork()
            if child == 0:
                link.close()
                self._become(request, received, command)
        except (OSError, ValueError, NeedsInterpreter) as error:
            self._answer(link, f"refused: {error}")
            link.close()
            return
        finally:
            for number in received:
                os.close(number)
        link.settimeout(None)
        self._asked_by[child] = link
        handle = os.pidfd_open(child)
        self._selector.register(handle, selectors.EVENT_READ, partial(self._ended, child, handle))
        self._selector.register(link, selectors.EVENT_READ, partial(self._launcher_ended, child))
        self._answer(link, f"{fork_launcher.ACCEPTED}{child}")

    @staticmethod
    def _answer(link: socket.socket, line: str) -> None:
        try:
            link.sendall(f"{line}\n".encode())
        except OSError:
            pass  # its launcher has died: the connection's end says so as well

    def _ended(self, child: int, handle: int) -> None:
        _, status = os.waitpid(child, 0)
        self._selector.unregister(handle)
        os.close(handle)
        link = self._asked_by.pop(child)
        if link.fileno() in self._selector.get_map():
            self._selector.unregister(link)
        self._answer(link, str(os.waitstatus_to_exitcode(status)))
        link.close()

    def _launcher_ended(self, child: int) -> None:
        """Whoever killed the launcher meant the child: it has not been waited for, so the id is still its own."""
        if child in self._asked_by:
            self._selector.unregister(self._asked_by[child])
            os.kill(child, signal.SIGKILL)

    def _become(self, request: Request, received: Sequence[int], command: Command) -> NoReturn:
        """In a new child: leave the server behind and do what was asked."""
        code = 1
        try:
            for key in list(self._selector.get_map().values()):
                os.close(key.fd)
            self._selector.close()
            take_over(request, received)
            set_name(Path(command.subject).stem if command.kind == "file" else "python")
            self._in_copy()
            code = run(command)
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            flush()
            os._exit(code)


def check_environment(asked: Mapping[str, str], own: Mapping[str, str]) -> None:
    """Raises NeedsInterpreter where a process with the variables `own` cannot become one with those of `asked`."""
    for name in {*asked, *own}:
        if name.startswith(READ_AT_START) and asked.get(name) != own.get(name):
            raise NeedsInterpreter(f"another {name}")
    loaded = (PROC / "self" / "maps").read_text()
    for library in asked.get("LD_PRELOAD", "").replace(":", " ").split():
        if os.path.realpath(library) not in loaded and not Path(library).name.startswith(ALLOCATORS):
            raise NeedsInterpreter(f"LD_PRELOAD of {library}")


def _receive(link: socket.socket, received: list[int]) -> Request:
    head, files, _, _ = socket.recv_fds(link, 4, MOST_FILES)
    received.extend(files)
    text = _exactly(link, int.from_bytes(head + _exactly(link, 4 - len(head)), "big"))
    request = Request(**json.loads(text))
    if len(request.files) != len(files):
        raise NeedsInterpreter(f"{len(request.files)} open files, more than can be passed on")
    return request


def _exactly(link: socket.socket, size: int) -> bytes:
    text = b""
    while len(text) < size:
        part = link.recv(size - len(text))
        if not part:
            raise NeedsInterpreter("cut short")
        text += part
    return text


def _peer(link: socket.socket) -> int:
    """The user at the other end."""
    _, user, _ = struct.unpack("3i", link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    return int(user)
