"""The one run of this process: what verl's parts, made by class path, cannot be handed.

`runner` opens it before verl starts; trainers, buffer, agent loop and checkpoint callback find it here.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from dapo_core.db import EventType
from dapo_core.run.samples import Sample
from dapo_trainer.groups.evaluated import Evaluated
from dapo_trainer.verl_adapter.ledger import Ledger


class Report(Protocol):
    """Where a run's news go. No method may raise or block: reporting never stops training."""

    def phase(self, phase: str, step: int, total_steps: int, detail: str = "") -> None: ...

    def step(self, step: int, values: Mapping[str, float]) -> None: ...

    def event(self, type: EventType, reason: str, message: str, step: int | None = None) -> None: ...

    def samples(self, step: int, rows: Sequence[Sample]) -> None: ...

    def checkpoint(self, step: int, folder: Path, metrics: Mapping[str, float]) -> None: ...


@dataclass
class Session:
    report: Report
    settings: Mapping[str, Any]
    ledger: Ledger = field(default_factory=Ledger)
    stop: threading.Event = field(default_factory=threading.Event)
    # Filled by the agent loop's thread, emptied by the trainer's; list.append is atomic.
    evaluated: list[Evaluated] = field(default_factory=list)
    samples: list[tuple[str, Sample]] = field(default_factory=list)
    # Called with the FSDP ranks' actors, by rank, before they load a checkpoint.
    on_ranks: Callable[[Sequence[Any]], None] = lambda _: None
    # The last whole steps on record and on disk; a resumed run starts with the step it resumes from.
    last_recorded: int = 0
    last_saved: int = 0
    _unrecorded: dict[int, Path] = field(default_factory=dict)
    _values: Mapping[str, float] = field(default_factory=dict)

    def saved(self, step: int, folder: Path) -> None:
        """verl has written the checkpoint of `step` to `folder`; it is offered to the store once `recorded`."""
        self._unrecorded[step] = folder
        self.last_saved = step

    def recorded(self, step: int, values: Mapping[str, float]) -> None:
        """The metrics of `step` are on record: its checkpoint, if any, may be committed."""
        self.last_recorded, self._values = step, values
        if (folder := self._unrecorded.pop(step, None)) is not None:
            self.report.checkpoint(step, folder, values)

    def saved_after(self, step: int) -> None:
        """The checkpoint of `step`, the last one recorded, was saved after its metrics were: it has them all the
        same, or it could not be among the best."""
        assert step == self.last_recorded
        self.recorded(step, self._values)


_current: Session | None = None


def open_session(session: Session) -> None:
    global _current
    _current = session


def current() -> Session:
    assert _current is not None, "runner opens the session before it builds verl's trainer"
    return _current
