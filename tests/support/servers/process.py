"""A server process of a test: its log, its end, and what can be done to it meanwhile."""

import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from patience import patient

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)


class Process:
    """One program that runs until it is stopped; started again, it gets the same command line.

    The kernel kills it when the thread that started it ends, so a test run that is killed leaves nothing behind.
    """

    def __init__(self, name: str, command: Sequence[str], log: Path, env: Mapping[str, str] | None = None) -> None:
        self.name, self.log = name, log
        self._command, self._env = list(command), {**os.environ, **(env or {})}
        self._running: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Of the process that runs now; RuntimeError if none was started."""
        if self._running is None:
            raise RuntimeError(f"{self.name} was not started")
        return self._running.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs, and before it was ever started."""
        return self._running.poll() if self._running else None

    def start(self) -> None:
        """Start it; its output is appended to its log."""
        if self._running and self._running.poll() is None:
            raise RuntimeError(f"{self.name} runs already")
        with self.log.open("ab") as log:
            self._running = subprocess.Popen(
                self._command, stdout=log, stderr=log, env=self._env, start_new_session=True, preexec_fn=_die_with_us
            )

    def stop(self, seconds: float = 10) -> None:
        """Ask it to end, and kill it after so many seconds; nothing happens if it does not run."""
        if self._running is None or self._running.poll() is not None:
            return
        self.resume()
        self._running.terminate()
        try:
            self._running.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        if self._running:
            self._running.kill()
            self._running.wait()

    def pause(self) -> None:
        """SIGSTOP: it keeps its connections and answers nothing."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)

    def wait_until(self, ready: Callable[[], bool], seconds: float) -> None:
        """Poll until it is ready; RuntimeError with the end of its log when it ends before or the time is over."""
        deadline = time.monotonic() + patient(seconds)
        while not ready():
            if self.exit_code is not None:
                raise RuntimeError(f"{self.name} ended with {self.exit_code}:\n{self.last_lines()}")
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self.name} was not ready within {seconds:g} s:\n{self.last_lines()}")
            time.sleep(0.03)

    def last_lines(self, count: int = 15) -> str:
        """The end of its log."""
        text = self.log.read_text(errors="replace") if self.log.exists() else ""
        return "\n".join(text.splitlines()[-count:])


def _die_with_us() -> None:
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
