"""Notices from within that a trainer hangs: a thread that compares the age of its phase with the phase's limit."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from dapo_core.jobspec import RunPolicy
from dapo_core.run.deadlines import Deadline, PhaseAges
from dapo_trainer.process.liveness import LivenessCounter

LOOK_SECONDS: Final = 5.0


@dataclass
class PhaseWatch:
    """`hung` is called once, from the watching thread, with the limit that passed. `alive` is when the last group of
    responses was finished, in seconds of `clock`. `liveness` counts as long as the watching thread runs."""

    policy: RunPolicy
    hung: Callable[[Deadline], None]
    alive: Callable[[], float] = lambda: 0.0
    clock: Callable[[], float] = time.monotonic
    liveness: LivenessCounter = field(default_factory=LivenessCounter)
    _ages: PhaseAges = field(default_factory=PhaseAges)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _over: threading.Event = field(default_factory=threading.Event)

    def enter(self, phase: str, detail: str = "") -> None:
        """The trainer begins a phase. Safe before `start` and from any thread."""
        with self._lock:
            self._ages = self._ages.at(self.clock(), phase, detail)

    def start(self) -> "PhaseWatch":
        """Watch until `stop`."""
        threading.Thread(target=self._watch, name="phase-watch", daemon=True).start()
        return self

    def stop(self) -> None:
        """From here on nothing is a hang: the trainer ends, and waits for its stores."""
        with self._lock:
            self._over.set()
            self.liveness.stop()

    def look(self) -> bool:
        """Whether the phase has passed its limit; if so, `hung` was called."""
        with self._lock:
            late = self._ages.deadline(self.policy, self.alive())
        if late is None or self.clock() < late.at or self._over.is_set():
            return False
        self._over.set()
        self.hung(late)
        return True

    def _watch(self) -> None:
        while not self._over.wait(LOOK_SECONDS):
            self._count()
            self.look()

    def _count(self) -> None:
        with self._lock:
            if not self._over.is_set():
                self.liveness.count()
