"""A plan as plain values. The executor carries it out in this order: status, actions, events."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from dapo_core.run.status import DAPOJobStatus

Body = Mapping[str, Any]


@dataclass(frozen=True)
class AddFinalizer:
    """Hold the DAPOJob's deletion until its pods have had time to end; before anything else is created."""


@dataclass(frozen=True)
class RemoveFinalizer:
    """Let Kubernetes remove the deleted DAPOJob."""


@dataclass(frozen=True)
class CreatePod:
    """Create a pod; an existing pod of that name is never changed."""

    body: Body


@dataclass(frozen=True)
class TryPod:
    """Ask the API server with a dry run whether it would accept this pod."""

    body: Body


@dataclass(frozen=True)
class ApplySupport:
    """Create or update a Service, ConfigMap, NetworkPolicy or PodDisruptionBudget."""

    body: Body


@dataclass(frozen=True)
class DeleteSupport:
    """Delete a support object of this kind and name that nothing needs any more."""

    kind: str
    name: str


@dataclass(frozen=True)
class Reserve:
    """Ask a gang scheduler for an attempt's room; an existing reservation is never changed."""

    scheduler: str
    body: Body


@dataclass(frozen=True)
class Adopt:
    """Take over a reservation that another controller made for this job: `body` is the metadata that it gets."""

    scheduler: str
    name: str
    body: Body


@dataclass(frozen=True)
class ReportOutcome:
    """Tell a gang scheduler about an attempt: the status of its reservation, which is applied."""

    scheduler: str
    body: Body


@dataclass(frozen=True)
class Release:
    """Delete a reservation that no attempt needs any more, after the last report about it. `uid` None: whatever has
    this name."""

    scheduler: str
    name: str
    uid: str | None
    report: ReportOutcome | None = None


@dataclass(frozen=True)
class CreateToken:
    """Create the Secret with the job's Ray token unless it exists; the token is drawn when this is carried out."""

    body: Body


@dataclass(frozen=True)
class DeletePod:
    """Delete the pod with this UID. `grace_seconds`: None is the pod's own grace period, 0 forces the deletion."""

    name: str
    uid: str
    grace_seconds: int | None = None


@dataclass(frozen=True)
class DeleteJob:
    """Delete the DAPOJob itself: ttlSecondsAfterFinished is over."""


Action = (
    AddFinalizer
    | RemoveFinalizer
    | CreatePod
    | TryPod
    | ApplySupport
    | DeleteSupport
    | Reserve
    | Adopt
    | ReportOutcome
    | Release
    | CreateToken
    | DeletePod
    | DeleteJob
)


@dataclass(frozen=True)
class Event:
    """A Kubernetes Event about the job."""

    type: Literal["Normal", "Warning"]
    reason: str
    message: str


@dataclass(frozen=True)
class Plan:
    """The new status, what to do once it is written, and when to reconcile again (Unix seconds) even if nothing
    happens. `gone`: nothing is left to do for this DAPOJob, ever."""

    status: DAPOJobStatus
    actions: tuple[Action, ...] = ()
    events: tuple[Event, ...] = ()
    wake_at: float | None = None
    gone: bool = False
