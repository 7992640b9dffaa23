"""Where a run's processes and files are: the part of the configuration that is not in the job."""

from dataclasses import dataclass
from typing import Literal

Device = Literal["cpu", "cuda"]


@dataclass(frozen=True)
class Placement:
    """`device`: what trainer and rollout compute on; `ray_address`: a running Ray cluster, None to start one here."""

    device: Device = "cpu"
    ray_address: str | None = None


@dataclass(frozen=True)
class Paths:
    """Local paths of what the job names by URI, fetched before verl starts.

    `checkpoints`: verl writes `global_step_N` folders here; `resume_from`: one such folder, None to start afresh.
    """

    model: str
    train: tuple[str, ...]
    validation: tuple[str, ...]
    checkpoints: str
    resume_from: str | None = None
