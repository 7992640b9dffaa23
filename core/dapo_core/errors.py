"""The exceptions that a user may see, each a sentence with a remedy.

DapoError
 +- SpecError               the job file is invalid; carries all its problems
 +- DataError               a data file cannot be used: file, row and column
 +- ModelError              the model cannot be loaded
 +- SamplingExhaustedError  dynamic sampling reached its cap without a full batch
 +- NodeUnfitError          a machine cannot train the job
 +- DistributedFaultError   a process or node of the run is lost
 +- StoreError              the metadata store or object store cannot be used
 |   +- CheckpointError     a checkpoint is missing, incomplete or does not fit
 +- StoppedError            a clean stop was requested
 +- RunBusyError            another process holds this run
 +- NotInstalledError       packages that a command needs are not installed

Which exit code and reason each gives is in `dapo_core.run.reasons`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar


class DapoError(Exception):
    """Base class. `user_mistake` makes the CLI exit with 2."""

    user_mistake: ClassVar[bool] = False


@dataclass(frozen=True, order=True)
class Problem:
    """One problem of a job file: its dotted YAML field, and a sentence that names field, value and remedy."""

    field: str
    message: str


class SpecError(DapoError):
    """An invalid job file. `problems` holds all of them, in the file's order."""

    user_mistake = True

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = list(problems)
        super().__init__("\n".join(problem.message for problem in self.problems))


class DataError(DapoError):
    """A data file that cannot be trained on; the message names file, row and column."""

    user_mistake = True


class ModelError(DapoError):
    """A model that cannot be found or loaded."""

    user_mistake = True


class SamplingExhaustedError(DapoError):
    """Dynamic sampling reached its cap without a full batch, and the job does not allow training on a part of one."""


class NodeUnfitError(DapoError):
    """A machine that cannot train the job: too few GPUs, an old driver, wrong results. The message names it."""


class DistributedFaultError(DapoError):
    """An engine, worker or node of the run is lost; the remedy is a restart from the newest checkpoint."""


class StoreError(DapoError):
    """The metadata database or the object store cannot be reached or used."""


class CheckpointError(StoreError):
    """A checkpoint that is missing, incomplete, or of another job."""


class StoppedError(DapoError):
    """A clean stop was requested, and the step in progress is abandoned at a point that loses nothing."""

    def __init__(self, message: str = "Stopped on request.") -> None:
        super().__init__(message)


class RunBusyError(DapoError):
    """Another process already works on this run."""

    user_mistake = True


class NotInstalledError(DapoError):
    """A command needs packages that are not installed here."""

    user_mistake = True


def first_line(error: BaseException) -> str:
    """The first line of an error's message, to quote it in a sentence; its type when it has no message."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__).rstrip(".")
