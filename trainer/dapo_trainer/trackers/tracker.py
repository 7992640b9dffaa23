"""What an experiment tracker is to a run; each of `wandb_run`, `mlflow_run` and `tensorboard_files` is one."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

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
