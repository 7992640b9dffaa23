"""The exceptions that a user may see, each a sentence with a remedy.

DapoError
 +- SpecError         the job file is wrong: all its problems at once
 +- DataError         a data file can not be used: file, row and column
 +- ModelError        the model can not be loaded
 +- RunBusyError      another process holds this run
 +- NotInstalledError  a command's packages are not installed
 +- DistributedFaultError  a part of the run on another process or node is gone
 +- StoreError        the metadata or object store can not be used
     +- CheckpointError   a checkpoint is missing, torn or does not fit
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from dapo_core.run.exit_codes import ExitCode


class DapoError(Exception):
    """Base of all. `exit_code` is what a trainer process ends with; `user_mistake` makes the CLI end with 2."""

    exit_code: ClassVar[int] = 1
    user_mistake: ClassVar[bool] = False


@dataclass(frozen=True, order=True)
class Problem:
    """One thing wrong with a job file: its dotted YAML field, and a sentence that names field, value and remedy."""

    field: str
    message: str


class SpecError(DapoError):
    """A job file that can not be run. `problems` holds everything found wrong with it, in the file's order."""

    exit_code = ExitCode.SPEC
    user_mistake = True

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = list(problems)
        super().__init__("\n".join(problem.message for problem in self.problems))


class DataError(DapoError):
    """A data file that can not be trained on; the message names file, row and column."""

    exit_code = ExitCode.DATA
    user_mistake = True


class ModelError(DapoError):
    """A model that can not be found or loaded."""

    exit_code = ExitCode.MODEL
    user_mistake = True


class RunBusyError(DapoError):
    """Another process already works on this run."""

    user_mistake = True


class NotInstalledError(DapoError):
    """A command needs packages that are not installed here."""

    user_mistake = True


class DistributedFaultError(DapoError):
    """An engine, worker or node of the run is gone; a restart from the newest checkpoint is the remedy."""

    exit_code = ExitCode.DISTRIBUTED


class StoreError(DapoError):
    """The metadata database or the object store can not be reached or used."""

    exit_code = ExitCode.STORES


class CheckpointError(StoreError):
    """A checkpoint that is missing, incomplete, or of another job."""
