"""The one run of this process: state that cannot be passed to our parts, since verl constructs them by class path.

`runner` opens the session before verl starts; trainers, buffer, agent loop and checkpoint callback find it here.
"""

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from dapo_core.db import EventType
from dapo_core.run.entries import Sample
from dapo_core.run.recording import RecordedGroup, RecordedResponse
from dapo_trainer.groups.dynamic_sampling import GroupOutcome
from dapo_trainer.groups.evaluated import Evaluated
from dapo_trainer.groups.group_records import GroupRecords
from dapo_trainer.rollouts.departures import Departures, MovedResponses


class Report(Protocol):
    """Where a run reports to. No method may raise or block: reporting never stops training."""

    def phase(self, phase: str, step: int, total_steps: int, detail: str = "") -> None: ...

    def step(self, step: int, values: Mapping[str, float]) -> None: ...

    def event(self, type: EventType, reason: str, message: str, step: int | None = None) -> None: ...

    def samples(self, step: int, rows: Sequence[Sample]) -> None: ...

    def groups(
        self, step: int, groups: Sequence[RecordedGroup], responses: Callable[[], Sequence[RecordedResponse]]
    ) -> None: ...

    def checkpoint(self, step: int, folder: Path, metrics: Mapping[str, float]) -> None: ...


class GroupTracker:
    """Which prompts are in flight and which groups have finished, by partition (`train`, `val`). Thread-safe.

    verl polls TransferQueue every two seconds for this; here the agent loop's thread wakes the trainer's.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._in_flight: dict[str, dict[str, int]] = defaultdict(dict)  # each with its place in the order
        self._submitted = 0
        self._finished: dict[str, list[GroupOutcome]] = defaultdict(list)
        self._error: BaseException | None = None
        self.finished_at = 0.0  # when a group was finished last, of time.monotonic

    def submit(self, partition: str, uids: Iterable[str]) -> None:
        with self._changed:
            for uid in uids:
                self._submitted += 1
                self._in_flight[partition][uid] = self._submitted

    def finish(self, partition: str, outcomes: Iterable[GroupOutcome]) -> None:
        with self._changed:
            self._finished[partition] += outcomes
            self.finished_at = time.monotonic()
            self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        """Make the next `take` raise: no group will finish any more."""
        with self._changed:
            self._error = error
            self._changed.notify_all()

    def in_flight(self, partition: str) -> int:
        """How many submitted prompts have a group that was not taken yet; a finished one counts until it is taken."""
        with self._changed:
            return len(self._in_flight[partition])

    def uids_in_flight(self, partition: str) -> set[str]:
        """The prompts that `in_flight` counts."""
        with self._changed:
            return set(self._in_flight[partition])

    def take(self, partition: str, timeout_seconds: float) -> list[GroupOutcome]:
        """All groups finished since the last call; waits up to `timeout_seconds` for the first one."""
        with self._changed:
            if not self._finished[partition] and self._error is None:
                self._changed.wait(timeout_seconds)
            if self._error is not None:
                raise self._error
            taken, self._finished[partition] = self._finished[partition], []
            places = self._in_flight[partition]
            return [replace(outcome, order=places.pop(outcome.uid, 0)) for outcome in taken]


@dataclass(frozen=True)
class Resumed:
    """The folder of the checkpoint that is resumed from; `has_weights`: the ranks have loaded its weights already."""

    folder: Path
    has_weights: bool = False


@dataclass
class Session:
    """The state of one run."""

    report: Report
    settings: Mapping[str, Any]
    groups: GroupTracker = field(default_factory=GroupTracker)
    stop: threading.Event = field(default_factory=threading.Event)
    # Filled by the agent loop's thread, emptied by the trainer's; list.append is atomic.
    evaluated: list[Evaluated] = field(default_factory=list)
    samples: list[tuple[str, Sample]] = field(default_factory=list)
    records: GroupRecords = field(default_factory=GroupRecords)
    departures: Departures = field(default_factory=Departures)
    moved: MovedResponses = field(default_factory=MovedResponses)
    # Called again and again by the trainer's thread while it waits for groups.
    while_waiting: Callable[[], None] = lambda: None
    # With separate pools: hands over what the engines of a pod (its name and role) generate, then calls the function.
    # False for other pods.
    drain: Callable[[str, str, Callable[[], None]], bool] = lambda _pod, _role, _done: False
    # Asks a pod to end, and says why; None on one machine.
    dismiss: Callable[[str, str], None] | None = None
    # Called with the actors of the FSDP ranks, by rank, as soon as they run.
    on_ranks: Callable[[Sequence[Any]], None] = lambda _: None
    # Waits for the checkpoint to resume from, and sets the steps below; None: from step 0. While its other files are
    # arriving, the function loads the weights from a folder; False if it does not.
    resume: Callable[[Callable[[Path], bool]], Resumed | None] = lambda _: None
    # The last whole steps on record and on disk; a resumed run starts with the step it resumes from.
    last_recorded: int = 0
    last_saved: int = 0
    _unrecorded: dict[int, Path] = field(default_factory=dict)
    _values: Mapping[str, float] = field(default_factory=dict)

    def saved(self, step: int, folder: Path) -> None:
        """verl has written the checkpoint of `step` to `folder`; it is uploaded once the step is `recorded`."""
        self._unrecorded[step] = folder
        self.last_saved = step

    def recorded(self, step: int, values: Mapping[str, float]) -> None:
        """The metrics of `step` are on record: its checkpoint, if any, may be uploaded."""
        self.last_recorded, self._values = step, values
        if (folder := self._unrecorded.pop(step, None)) is not None:
            self.report.checkpoint(step, folder, values)

    def saved_after(self, step: int) -> None:
        """The checkpoint of `step`, the last recorded one, was saved after its metrics were recorded: attach them, so
        that it can be among the best."""
        assert step == self.last_recorded
        self.recorded(step, self._values)


_current: Session | None = None


def open_session(session: Session) -> None:
    """Make `session` the one that `current` returns."""
    global _current
    _current = session


def current() -> Session:
    """The session of this process, which has been opened."""
    assert _current is not None, "runner opens the session before it builds verl's trainer"
    return _current
