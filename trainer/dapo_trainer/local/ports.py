"""What a supervisor needs of the stores and of the rules shared with the operator, in its own words.

`adapters` fills these from dapo_core; the tests fill them with functions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from dapo_core.run.entries import RunState
from dapo_core.run.guards import Alert
from dapo_trainer.local.view_model import Note

NextAction = Literal["restart", "fail", "stop", "suspend"]


@dataclass(frozen=True)
class Step:
    """One finished step as the trainer reported it, with NaN and infinities as such."""

    attempt: int
    step: int
    at: float
    values: Mapping[str, float]


@dataclass(frozen=True)
class Ended:
    """How an attempt ended. Times are Unix seconds; `step_from` is the step it started from, `step_to` its last
    finished one, both None when it finished none."""

    attempt: int
    started_at: float
    ended_at: float
    exit_code: int
    reason: str
    message: str
    step_from: int | None = None
    step_to: int | None = None


@dataclass(frozen=True)
class Next:
    """What comes after an attempt. `reason` is a CamelCase word, `message` a sentence."""

    action: NextAction
    counted: bool
    delay_seconds: float
    reason: str
    message: str


@dataclass(frozen=True)
class Alarm:
    """A guard of the job that holds."""

    rule: str
    action: Literal["Warn", "Suspend", "Fail"]
    message: str


class Feed(Protocol):
    """The news of one attempt, read while they are written."""

    def read(self) -> Sequence[Step | Note]:
        """What came since the last call."""


class Guard(Protocol):
    """The job's health rules over the steps so far."""

    def judge(self, step: Step) -> Sequence[Alarm]:
        """Rules that begin to hold with this step; one that went on holding is not told again."""


class AlertLog(Protocol):
    """Where the store's record of alerts is kept; does not raise."""

    def alert_raised(self, alert: Alert, at: float) -> None: ...

    def alert_cleared(self, rule: str, at: float) -> None: ...


class Policy(Protocol):
    """The failure policy, the same as the operator's."""

    def after(self, attempts: Sequence[Ended], counted: int) -> Next:
        """What to do after the last of `attempts`, which nobody asked to stop; `counted` restarts there were before."""


class Record(Protocol):
    """The rows of a run in the metadata store. None of these raises: a store that is down never ends a run."""

    def attempt_started(self, attempt: int, at: float) -> None: ...

    def attempt_ended(self, ended: Ended, counted: bool | None) -> None: ...

    def state(self, state: RunState, reason: str, message: str) -> None: ...

    def event(self, note: Note, attempt: int, step: int | None) -> None: ...

    def deliver(self, spool: Path) -> None:
        """Send what a dead trainer left unsent in its spool."""
