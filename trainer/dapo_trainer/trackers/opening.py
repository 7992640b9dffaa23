"""The trackers that a job names: what each needs before a run starts, and the mirrors of an attempt."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Final

from dapo_core.errors import Problem, SpecError
from dapo_core.jobspec import DAPOJob
from dapo_trainer.trackers.mirror import Mirror, Notify, Opener, TrackedRun, Tracker

# Class and module of each; imported when the first step is logged.
_CLASSES: Final[Mapping[str, tuple[str, str]]] = {
    "wandb": ("wandb_run", "WandbRun"),
    "mlflow": ("mlflow_run", "MlflowRun"),
    "tensorboard": ("tensorboard_files", "TensorBoardFiles"),
}


def _open(name: str, run: TrackedRun, first_step: int) -> Tracker:
    module, kind = _CLASSES[name]
    made: Tracker = getattr(import_module(f"dapo_trainer.trackers.{module}"), kind)(run, first_step)
    return made


OPENERS: Final[Mapping[str, Opener]] = {name: partial(_open, name) for name in _CLASSES}


def check_trackers(names: Sequence[str], environment: Mapping[str, str]) -> None:
    """Raises SpecError for a tracker that could not be written, with the variable to set."""
    in_pod = "DAPO_ROLE" in environment
    if "mlflow" in names and not environment.get("MLFLOW_TRACKING_URI"):
        _refuse("mlflow", "MLFLOW_TRACKING_URI", "the address of the server, such as https://mlflow.example.com")
    if "tensorboard" in names and in_pod and not environment.get("DAPO_TENSORBOARD_DIR"):
        # The pod's own folders are deleted with it.
        _refuse("tensorboard", "DAPO_TENSORBOARD_DIR", "a folder of a volume that the head's podTemplate mounts")


def _refuse(name: str, variable: str, meaning: str) -> None:
    sentence = (
        f"spec.trackers has {name}, but the variable {variable} is not set: set it to {meaning}, or remove {name}."
    )
    raise SpecError([Problem("spec.trackers", sentence)])


def mirrors(
    job: DAPOJob, run_id: str, folder: Path, notify: Notify, openers: Mapping[str, Callable[..., Tracker]] = OPENERS
) -> list[Mirror]:
    """A mirror for each tracker of the job; `folder` is the run's own on this machine."""
    if not job.spec.trackers:
        return []
    spec = job.spec.model_dump(by_alias=True, mode="json", exclude_none=True)
    run = TrackedRun(run_id, job.metadata.name, job.metadata.namespace, spec, folder)
    return [Mirror(name, openers[name], run, notify) for name in job.spec.trackers]
