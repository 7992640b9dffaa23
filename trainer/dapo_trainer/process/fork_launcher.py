"""Stands in for `python` where Ray and multiprocessing start processes: the fork server does the work of this command.

Run as `python -I -S fork_launcher.py SOCKET ARGUMENTS...`, from the script that `fork_server.listen` writes. Hands its
arguments, environment, folder, signal mask and open files to the fork server, whose child becomes the process that was
asked for. This one stays: it passes signals on, ends with the child's exit code or signal, and whoever kills it kills
the child. Without a server, or where the server refuses, it becomes Python itself. Imports the standard library alone:
it is started often, and has to cost next to nothing.
"""

import json
import os
import select
import signal
import socket
import sys

FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
# What the last argument of a process of multiprocessing's is. Such a process is of no use without its parent.
CHILD_OF_MULTIPROCESSING = "--multiprocessing-fork"
NAME = "dapo-launcher"
ACCEPTED = "child "
LOST_CHILD = 255  # exit code when the server has died and cannot say how the child ended


class CommandRefused(Exception):
    """The server would not start this command."""


def main() -> None:
    path, *arguments = sys.argv[1:]
    parent = os.getppid()
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)  # until there is a child to pass them on to
    try:
        link, child = _hand_over(path, arguments, sorted(blocked))
    except (OSError, CommandRefused):
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        os.execv(sys.executable, [sys.executable, *arguments])
    for number in FORWARDED:
        signal.signal(number, lambda signum, _frame: _pass_on(child, signum))
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    _end_like(_exit_code(link, child, parent if CHILD_OF_MULTIPROCESSING in arguments else None))


def _hand_over(path: str, arguments: list[str], blocked: list[int]) -> tuple[socket.socket, int]:
    """The connection to the server, and the id of the process it started. Raises OSError, CommandRefused."""
    files = [int(entry) for entry in os.listdir("/proc/self/fd")]
    link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    link.connect(path)
    # Without the one that listed them, whose number the connection may have by now.
    files = [number for number in files if number != link.fileno() and _is_open(number)]
    request = {
        "arguments": arguments,
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "blocked": blocked,
        "files": files,
        "niceness": os.getpriority(os.PRIO_PROCESS, 0),
    }
    text = json.dumps(request).encode()
    socket.send_fds(link, [len(text).to_bytes(4, "big")], files)
    link.sendall(text)
    answer = _line(link)
    if not answer.startswith(ACCEPTED):
        raise CommandRefused(answer)
    # The child has them now; a pipe is closed when its last holder has closed it.
    os.closerange(0, link.fileno())
    os.closerange(link.fileno() + 1, max([*files, link.fileno()]) + 1)
    with open("/proc/self/comm", "w") as comm:
        comm.write(NAME)
    return link, int(answer.removeprefix(ACCEPTED))


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def _line(link: socket.socket) -> str:
    """The server's next line; empty when it has closed the connection."""
    text = b""
    while not text.endswith(b"\n"):
        part = link.recv(1)
        if not part:
            return ""
        text += part
    return text.decode().strip()


def _pass_on(child: int, number: int) -> None:
    try:
        os.kill(child, number)
    except ProcessLookupError:
        pass


def _exit_code(link: socket.socket, child: int, parent: int | None) -> int:
    """Waits for the child: its exit code, or minus the signal that ended it. Kills it when `parent` has ended."""
    if link.fileno() not in _first_of(link.fileno(), parent):
        return -signal.SIGKILL  # the server kills the child when this process has ended
    if answer := _line(link):
        return int(answer)
    _first_of(None, child)
    return LOST_CHILD


def _first_of(file: int | None, process: int | None) -> list[int]:
    """Waits until `file` can be read or `process` has ended; which files are ready."""
    waiting = select.poll()
    if file is not None:
        waiting.register(file, select.POLLIN)
    if process is not None:
        try:
            waiting.register(os.pidfd_open(process), select.POLLIN)
        except ProcessLookupError:
            return []
    return [number for number, _ in waiting.poll()]


def _end_like(code: int) -> None:
    if code >= 0:
        os._exit(code)
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the child has left its own, if any
    if -code not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(-code, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {-code})
    os.kill(os.getpid(), -code)


if __name__ == "__main__":
    main()
