"""What happened to a run, as marks on its charts. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from dapo_core.db import AttemptRow, CheckpointRow
from dapo_dashboard.charts.buckets import Curve

Kind = Literal["restart", "suspend", "checkpoint", "alert", "validation"]


@dataclass(frozen=True)
class Mark:
    """At `step`; `label` is a word or two."""

    kind: Kind
    step: int
    label: str


_STOPS: Final = ("Suspended", "Terminated")


def of_attempts(attempts: Sequence[AttemptRow]) -> list[Mark]:
    """A restart at the step that an attempt resumed from, a suspend at the last step of the attempt before."""
    marks = [
        Mark("restart", attempt.step_from, f"attempt {attempt.attempt}")
        for attempt in attempts
        if attempt.attempt > 1 and attempt.step_from is not None
    ]
    marks += [
        Mark("suspend", attempt.step_to, "stopped")
        for attempt in attempts
        if attempt.step_to is not None and (attempt.reason or "").startswith(_STOPS)
    ]
    return marks


def of_checkpoints(checkpoints: Iterable[CheckpointRow]) -> list[Mark]:
    """Those that can be resumed from."""
    return [Mark("checkpoint", row.step, "") for row in checkpoints if row.state == "committed"]


def of_validations(curve: Curve) -> list[Mark]:
    """The steps at which a metric of validation was measured."""
    return [Mark("validation", bucket.step_to, "") for bucket in curve]
