"""What a pod prints is passed on and stored by a process of its own, which outlives the trainer, however that ends.

The pod's first process stays that recorder; the program goes on in a child. The recorder reads the child's output,
writes it to its own, and uploads it every few seconds: when the kernel ends all processes of a container that is out of
memory, the log up to a moment before is stored. It is bounded in the store, and in memory while the store is away. The
recorder forwards signals and ends with the child's exit code, or starts the program again for the next attempt
(`next_attempt`). It also ends a driver that hangs so that not even the thread runs by which it would notice that
itself.
"""

import contextlib
import logging
import os
import select
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Final

from dapo_core.errors import DapoError
from dapo_core.naming import ROLES
from dapo_core.objectstore import ObjectStore
from dapo_core.run.last_words import LastWords
from dapo_core.run.log_keys import KEPT_ATTEMPTS, PART_BYTES, PodLog, logs_prefix, parse_log_key, parts_left_out
from dapo_core.run.reasons import ExitCode, Reason
from dapo_trainer.pod.next_attempt import IN_PLACE, RESTART, may_stay, serve_next
from dapo_trainer.process import liveness
from dapo_trainer.process.signals import STOPPING, become_subreaper, signal_at_death_of

log = logging.getLogger(__name__)

SAVE_SECONDS: Final = 15.0
# For the last part, after the child has ended; the pod has some seconds more than the checkpoint needs.
LAST_SAVE_SECONDS: Final = 15.0
BLOCK: Final = 64 * 1024
# More than a pipe holds, of what is printed by processes that never stop.
LEFT_BLOCKS: Final = 32
# A driver whose watching thread has not run for so long, which looks every five seconds, never goes on.
SILENT_SECONDS: Final = 300.0
LOOK_SECONDS: Final = 10.0
# Of a container: it has the process namespace, and the shared memory, to itself.
FIRST_PROCESS: Final = 1


def record_output(environment: Mapping[str, str]) -> None:
    """Fork: return in the child, whose output is recorded; the parent records it and never returns.

    Call it before the first thread starts. Without the variables that name the log it does nothing.
    """
    named = _log_of(environment)
    if named is None:
        return
    reading, writing = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    parent = os.getpid()
    if environment.get(RESTART) == IN_PLACE:
        become_subreaper()  # of Ray's daemons, where the container is not a process namespace of its own
    # A first process of a container ignores what it has no handler for: a signal of this moment would be lost. After a
    # restart in place they are blocked already.
    signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    if (child := os.fork()) == 0:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)
        signal_at_death_of(parent, signal.SIGKILL)
        os.close(reading)
        os.dup2(writing, sys.stdout.fileno())
        os.dup2(writing, sys.stderr.fileno())
        os.close(writing)
        return
    os.close(writing)
    recorder = _Recorder(child, reading, *named)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)
    code = recorder.run()
    if may_stay(environment, code) and not recorder.asked:
        serve_next(environment, alone=parent == FIRST_PROCESS)
    os._exit(code)


def _log_of(environment: Mapping[str, str]) -> tuple[str, str, PodLog] | None:
    """URL of the store, run and log of this pod."""
    role = environment.get("DAPO_ROLE")
    known = next((name for name in ROLES if name == role), None)
    try:
        log_ = PodLog(int(environment["DAPO_ATTEMPT"]), known, int(environment["DAPO_INDEX"])) if known else None
        return None if log_ is None else (environment["DAPO_STORE_URL"], environment["DAPO_RUN_ID"], log_)
    except (KeyError, ValueError):
        return None


class _Recorder:
    def __init__(self, child: int, output: int, store_url: str, run_id: str, pod_log: PodLog) -> None:
        self._child, self._output = child, output
        self._upload = _Upload(store_url, run_id, pod_log)
        self._code: int | None = None
        self._hangs = False
        self.asked = False  # to end, by a signal
        for number in STOPPING:
            signal.signal(number, self._forward)

    def run(self) -> int:
        """Until the child has ended; its exit code, 128 + N for a death by signal N."""
        ended, end = os.pipe()
        threading.Thread(target=self._reap, args=(end,), daemon=True).start()
        threading.Thread(target=self._watch, daemon=True).start()
        self._upload.start()
        poll = select.poll()
        poll.register(self._output, select.POLLIN)
        poll.register(ended, select.POLLIN)
        while True:
            ready = {descriptor for descriptor, _ in poll.poll()}
            if self._output in ready and not self._pass_on():
                poll.unregister(self._output)  # the child has closed it
            elif ended in ready:
                # Processes that outlive the child keep the pipe open: what is in it by now is all.
                os.set_blocking(self._output, False)
                for _ in range(LEFT_BLOCKS):
                    self._pass_on()
                break
        self._upload.finish()
        assert self._code is not None
        return ExitCode.KILLED if self._hangs else self._code

    def _forward(self, number: int, _frame: FrameType | None) -> None:
        self.asked = True
        with contextlib.suppress(ProcessLookupError):  # it has just ended
            if self._code is None:
                os.kill(self._child, number)

    def _reap(self, end: int) -> None:
        """Wait for the child, and for the orphans that come to a container's first process."""
        while self._code is None:
            pid, status = os.wait()
            if pid == self._child:
                code = os.waitstatus_to_exitcode(status)
                self._code = code if code >= 0 else 128 - code
        os.write(end, b"\0")

    def _watch(self) -> None:
        """End the child when its counter stays the same. What is counted are looks, not seconds: while the machine is
        suspended neither of the two runs."""
        value, silent = 0, 0.0
        while self._code is None and silent < SILENT_SECONDS:
            time.sleep(LOOK_SECONDS)
            before, value = value, liveness.DRIVER.value
            silent = silent + LOOK_SECONDS if value and value == before else 0.0
        if self._code is None:
            self._end_hung()

    def _end_hung(self) -> None:
        """As the driver ends itself: the stacks are in the log, and the reason in the last words."""
        import psutil

        from dapo_trainer.process.processes import dump_stacks

        self._hangs = True
        message = f"The trainer hangs: none of its threads has run for {SILENT_SECONDS:.0f} s."
        log.error("%s", message)
        with contextlib.suppress(psutil.Error, OSError), tempfile.TemporaryDirectory() as folder:
            child, stacks = psutil.Process(self._child), Path(folder) / "stacks.log"
            dump_stacks([child, *child.children(recursive=True)], stacks)
            self._print(stacks.read_bytes())
        LastWords(Reason.STALLED, message).leave()
        with contextlib.suppress(ProcessLookupError):  # the dump may have ended it
            os.kill(self._child, signal.SIGKILL)

    def _pass_on(self) -> bool:
        """One block of output; False when there is none."""
        try:
            data = os.read(self._output, BLOCK)
        except BlockingIOError:
            return False
        self._print(data)
        return bool(data)

    def _print(self, data: bytes) -> None:
        self._upload.parts.add(data)
        left = memoryview(data)
        with contextlib.suppress(OSError):  # nobody reads the pod's own output any more
            while left:
                left = left[os.write(sys.stdout.fileno(), left) :]


class _Upload(threading.Thread):
    """Stores the log. An error is printed once and stops nothing: the log is not worth the attempt."""

    def __init__(self, store_url: str, run_id: str, pod_log: PodLog) -> None:
        super().__init__(daemon=True)
        self.parts = LogParts(run_id, pod_log)
        self._store_url, self._run_id, self._log = store_url, run_id, pod_log
        self._last = threading.Event()
        self._said = ""

    def run(self) -> None:
        from dapo_core.objectstore import open_store  # not in the child: the client is imported here alone

        try:
            store = open_store(self._store_url)
        except DapoError as error:
            self._say(error)
            return
        if self._log.role == "head":
            self._try(lambda: delete_old_logs(store, self._run_id, self._log.attempt))
        last = False
        while not last:
            last = self._last.wait(SAVE_SECONDS)
            if self.parts.changed:
                self._try(lambda: self.parts.save(store))

    def finish(self) -> None:
        """Store what is left, if the store answers in time."""
        self._last.set()
        self.join(LAST_SAVE_SECONDS)

    def _try(self, store: Callable[[], None]) -> None:
        try:
            store()
        except (DapoError, OSError) as error:
            self._say(error)
        else:
            self._said = ""

    def _say(self, error: Exception) -> None:
        if str(error) != self._said:
            self._said = str(error)
            log.warning("This pod's log is not stored: %s", error)


class LogParts:
    """The parts of one log. Methods may be called by several threads; `save` by one at a time."""

    def __init__(self, run_id: str, log: PodLog) -> None:
        self._run_id, self._log = run_id, log
        self._lock = threading.Lock()
        self._unsaved: dict[int, bytearray] = {}  # by number; those that were saved and are full are not kept
        self._current = 1
        self._changed: set[int] = set()
        self._deleted = 1  # numbers up to this one need not be looked at again

    def add(self, data: bytes) -> None:
        """Append to the log."""
        with self._lock:
            while data:
                part = self._unsaved.setdefault(self._current, bytearray())
                taken, data = data[: PART_BYTES - len(part)], data[PART_BYTES - len(part) :]
                part += taken
                self._changed.add(self._current)
                if len(part) == PART_BYTES:
                    self._current += 1
            for number in parts_left_out(self._current):
                self._unsaved.pop(number, None)
                self._changed.discard(number)

    @property
    def changed(self) -> bool:
        """Whether there is something to save."""
        return bool(self._changed)

    def save(self, store: ObjectStore) -> None:
        """Store what was added, delete what is no longer kept. Raises StoreError; the next call goes on from there."""
        for number, data in self._pending():
            store.put_bytes(self._log.key(self._run_id, number), data)
            with self._lock:
                part = self._unsaved.get(number)
                if part is not None and len(part) == len(data):
                    self._changed.discard(number)
                    if len(data) == PART_BYTES:
                        del self._unsaved[number]
        for number in parts_left_out(self._current):
            if number > self._deleted:
                store.delete(self._log.key(self._run_id, number))
                self._deleted = number

    def _pending(self) -> Iterator[tuple[int, bytes]]:
        with self._lock:
            numbers = sorted(self._changed)
        for number in numbers:
            with self._lock:
                data = bytes(self._unsaved.get(number, b""))
            if data:
                yield number, data


def delete_old_logs(store: ObjectStore, run_id: str, attempt: int) -> None:
    """Delete the logs of attempts long before this one. Raises StoreError."""
    for info in list(store.list(logs_prefix(run_id))):
        parsed = parse_log_key(run_id, info.key)
        if parsed is not None and parsed[0].attempt <= attempt - KEPT_ATTEMPTS:
            store.delete(info.key)
