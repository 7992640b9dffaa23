"""What an experiment tracker is to a run, and the mirror that brings it the run's metrics.

A mirror has a thread of its own: a tracker never stops or slows training. Steps wait in memory while the tracker cannot
be reached, the newest `MAX_WAITING` of them. The metadata store has all of them in any case. Trackers are `wandb_run`,
`mlflow_run` and `tensorboard_files`.
"""

import logging
import random
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final, Protocol

from dapo_core.backoff import Backoff

# User and password of a URL, and what wandb takes for keys: the text of an error is shown to everyone who sees the run.
_CREDENTIALS = re.compile(r"(?<=//)[^/@\s]+@|\b[0-9a-f]{40}\b")


@dataclass(frozen=True)
class TrackedRun:
    """The run, as trackers know it: `run_id` is the same in every attempt. Files go below `folder`."""

    run_id: str
    name: str
    namespace: str
    spec: Mapping[str, Any]
    folder: Path


class StepRefusedError(Exception):
    """The tracker will never take this step; later ones it may."""


class Tracker(Protocol):
    """A run in a tracker, open for one attempt. Methods may block and raise anything; one thread calls them."""

    def log(self, step: int, at: float, values: Mapping[str, float]) -> None:
        """Write the metrics of a step, NaN and infinities too; `at` in Unix seconds.

        Raises StepRefusedError when a retry is of no use.
        """

    def close(self, *, done: bool) -> None:
        """End the attempt. `done`: the run is complete; otherwise another attempt may continue it."""


Opener = Callable[[TrackedRun, int], Tracker]
"""Opens a run, the same one in every attempt; the number is the first step that will be logged."""


def reason_of(error: BaseException) -> str:
    """One line of at most 300 characters that says what is wrong, without credentials."""
    text = " ".join(str(error).split()) or type(error).__name__
    return _CREDENTIALS.sub("", text)[:300]


log = logging.getLogger(__name__)

MAX_WAITING: Final = 1000  # steps; a hundred numbers each are some 10 MB

Notify = Callable[[str, str], None]
"""Called with a CamelCase reason and a sentence; must not raise."""


@dataclass(frozen=True)
class _Step:
    step: int
    at: float
    values: Mapping[str, float]


class Mirror:
    """Logs the steps of one attempt to one tracker. No method raises; only `join` waits."""

    def __init__(
        self,
        name: str,
        opener: Opener,
        run: TrackedRun,
        notify: Notify,
        *,
        max_waiting: int = MAX_WAITING,
        backoff: Backoff = Backoff(1.0, 60.0),  # noqa: B008 - frozen
    ) -> None:
        self.name = name
        self._opener, self._run, self._notify, self._backoff = opener, run, notify, backoff
        self._waiting: deque[_Step] = deque(maxlen=max_waiting)  # a full one drops its oldest
        self._wakeup: SimpleQueue[None] = SimpleQueue()
        self._added = self._logged = 0
        self._told = False
        self._closing = threading.Event()
        self._done = False
        self._give_up_at = float("inf")
        self._tracker: Tracker | None = None
        self._thread = threading.Thread(target=self._work, name=f"dapo-{name}", daemon=True)
        self._thread.start()

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """Take the metrics of a step. Called by one thread."""
        self._waiting.append(_Step(step, time.time(), dict(values)))
        self._added += 1
        self._wakeup.put(None)

    def finish(self, timeout_seconds: float, *, done: bool) -> None:
        """Log what waits, for at most `timeout_seconds`, and end the attempt; `done` as in `Tracker.close`."""
        self._done, self._give_up_at = done, time.monotonic() + timeout_seconds
        self._closing.set()
        self._wakeup.put(None)

    def join(self) -> bool:
        """Wait for what `finish` asked for. Returns whether the tracker has every step."""
        self._thread.join(max(0.0, self._give_up_at - time.monotonic()))
        missing = self._added - self._logged
        if missing:
            self._notify(
                "TrackerIncomplete", f"{self.name} did not receive {missing} of this attempt's {self._added} steps."
            )
        return not missing and not self._thread.is_alive()

    def _work(self) -> None:
        while True:
            self._wakeup.get()
            self._empty()
            if self._closing.is_set():
                self._end()
                return

    def _empty(self) -> None:
        while self._waiting:
            try:
                taken = self._waiting.popleft()
            except IndexError:
                return
            if not self._until_logged(taken):
                return

    def _until_logged(self, taken: _Step) -> bool:
        """Log a step, however often that takes. Returns False when the time to close is over."""
        failures = 0
        while True:
            try:
                self._log(taken)
                self._logged += 1
                return True
            except StepRefusedError as error:
                self._tell(f"it refuses step {taken.step}: {reason_of(error)}")
                return True
            except Exception as error:  # whatever a third party's client raises
                failures += 1
                self._tracker = None  # opened again: a client may be of no use after an error
                self._tell(f"{reason_of(error)}. The newest {self._waiting.maxlen:,} steps wait for it")
            delay = self._backoff.delay(failures, random.random())
            if time.monotonic() + delay >= self._give_up_at:
                return False
            if self._closing.is_set():
                time.sleep(delay)
            else:
                self._closing.wait(delay)

    def _log(self, taken: _Step) -> None:
        if self._tracker is None:
            self._tracker = self._opener(self._run, taken.step)
        self._tracker.log(taken.step, taken.at, taken.values)

    def _tell(self, why: str) -> None:
        """The first error of an attempt is an event, the others are in the log."""
        log.warning("%s: %s", self.name, why)
        if not self._told:
            self._told = True
            self._notify("TrackerFailed", f"{self.name} does not take the run's metrics: {why}. Training continues.")

    def _end(self) -> None:
        if self._tracker is None:
            return
        try:
            self._tracker.close(done=self._done)
        except Exception as error:
            self._tell(f"it cannot be closed: {reason_of(error)}")
