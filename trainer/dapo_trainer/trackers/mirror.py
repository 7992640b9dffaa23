"""Mirrors the metrics of a run to one tracker, in a thread of its own: a tracker never stops or slows training.

Steps wait in memory while the tracker cannot be reached, the newest `MAX_WAITING` of them. The metadata store has all
of them in any case.
"""

import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Final

from dapo_core.backoff import Backoff
from dapo_trainer.trackers.tracker import Opener, StepRefusedError, TrackedRun, Tracker, reason_of

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
            self._notify("TrackerIncomplete", f"{self.name} lacks {missing} of this attempt's {self._added} steps.")
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
