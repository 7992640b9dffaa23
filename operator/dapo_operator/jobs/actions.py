"""What a plan asks for: plain values, carried out by the executor in this order: status, actions, events."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from dapo_core.run.status import DAPOJobStatus

Body = Mapping[str, Any]


@dataclass(frozen=True)
class AddFinalizer:
    """Hold the DAPOJob's deletion until its pods had their time to end; before anything else is made."""


@dataclass(frozen=True)
class RemoveFinalizer:
    """Let the DAPOJob go."""


@dataclass(frozen=True)
class CreatePod:
    """Create a pod, never change one: a pod of that name that is there already stays as it is."""

    body: Body


@dataclass(frozen=True)
class TryPod:
    """Ask the API server whether it would take this pod, without making it."""

    body: Body


@dataclass(frozen=True)
class ApplySupport:
    """Make or update an object that the pods need: Service, ConfigMap, NetworkPolicy, PodDisruptionBudget, PodGroup."""

    body: Body


@dataclass(frozen=True)
class CreateToken:
    """Create the Secret with the job's Ray token, unless there is one; its value is drawn when this is carried out."""

    body: Body


@dataclass(frozen=True)
class DeletePod:
    """Delete this very pod (by UID). `grace_seconds` None is the pod's own grace period, 0 is by force."""

    name: str
    uid: str
    grace_seconds: int | None = None


@dataclass(frozen=True)
class DeleteJob:
    """Delete the DAPOJob itself: its time to live is over."""


Action = AddFinalizer | RemoveFinalizer | CreatePod | TryPod | ApplySupport | CreateToken | DeletePod | DeleteJob


@dataclass(frozen=True)
class Event:
    """A line of the job's story for `kubectl describe`."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str


@dataclass(frozen=True)
class Plan:
    """The status as it should be, what to do once it is written, and when to look again (Unix seconds) even if
    nothing happens. `gone`: nothing is left to do for this DAPOJob, ever."""

    status: DAPOJobStatus
    actions: tuple[Action, ...] = ()
    events: tuple[Event, ...] = ()
    wake_at: float | None = None
    gone: bool = False
