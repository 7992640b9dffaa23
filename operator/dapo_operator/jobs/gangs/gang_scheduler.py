"""What a gang scheduler is to the operator: an attempt reserves room, observes whether it has it, and releases it.

A reservation is one object of the scheduler's own kind, owned by the DAPOJob and labeled with job and attempt; to
release it is to delete that object. Pure.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from dapo_core.naming import LABEL_ATTEMPT, LABEL_JOB, Role
from dapo_operator.jobs.job_objects import Object, Site, group_name, support
from dapo_operator.kube.objects import Resource


@dataclass(frozen=True)
class PodSet:
    """Pods of one role: how many, how many of them the attempt cannot do without, and one as the API server gets it."""

    role: Role
    count: int
    required: int
    pod: Object


@dataclass(frozen=True)
class GangRequest:
    """One attempt that asks for room. `resources` is what its required pods request, empty when that is unknown.
    `workload_priority_class` is Kueue's own; it comes before `priority_class`."""

    job: str
    namespace: str
    uid: str
    attempt: int
    queue: str | None
    pod_sets: tuple[PodSet, ...]
    resources: Mapping[str, str] = field(default_factory=dict)
    priority_class: str | None = None
    workload_priority_class: str | None = None
    start_timeout_seconds: int = 3600

    @property
    def required_pods(self) -> int:
        """The pods without which the attempt does not start."""
        return sum(pods.required for pods in self.pod_sets)

    @property
    def annotations(self) -> dict[str, str]:
        """Of all its pods: what concerns the whole gang may be on those of any role."""
        return {key: value for pods in self.pod_sets for key, value in pods.pod["metadata"]["annotations"].items()}

    def object(self, api_version: str, kind: str, **content: Any) -> Object:
        """An object named after the attempt, with its labels and its owner."""
        name = group_name(self.job, self.attempt)
        body = support(api_version, kind, name, self.namespace, self.job, self.uid, **content)
        body["metadata"]["labels"] = body["metadata"]["labels"] | {LABEL_ATTEMPT: str(self.attempt)}
        return body


@dataclass(frozen=True)
class PodFields:
    """What the pods of a gang have in addition."""

    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    spec: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class PodSetAssignment:
    """What the scheduler decided for the pods of one role. `count` is how many it admitted; None: all. `flavors` are
    names of Kueue's ResourceFlavors."""

    count: int | None = None
    flavors: tuple[str, ...] = ()
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Mapping[str, Any], ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    gates: tuple[str, ...] = ()


@dataclass(frozen=True)
class Reservation:
    """A reservation as it is observed.

    `admitted`: the attempt has its room. `revoked` is a sentence about why it has to give it back, and `late` says that
    it does because its pods did not get ready in time. `deactivated`: somebody does not want it to be admitted again.
    `message` is what the scheduler says of a reservation that waits. `terminating`: it was deleted, and is kept by a
    finalizer, which may be waiting for the pods. `knows_ready`: the scheduler knows that the pods
    are ready, or has no use for it.
    """

    scheduler: str
    name: str
    uid: str
    attempt: int
    admitted: bool = True
    revoked: str | None = None
    late: bool = False
    deactivated: bool = False
    message: str = ""
    terminating: bool = False
    knows_ready: bool = True
    placements: Mapping[str, PodSetAssignment] = field(default_factory=dict)


@dataclass(frozen=True)
class AttemptOutcome:
    """How an attempt ended by itself: `message` is a sentence."""

    succeeded: bool
    message: str


class GangScheduler(Protocol):
    """One scheduler. `resource` is None for one without reservations. `waits`: pods are created once it has admitted
    the attempt; others hold the pods back themselves."""

    @property
    def name(self) -> str:
        """As `spec.runPolicy.gang.scheduler` names it."""
        ...

    @property
    def resource(self) -> Resource | None:
        """Of its reservations."""
        ...

    @property
    def waits(self) -> bool:
        """Whether pods are created only once it has admitted the attempt."""
        ...

    def reserve(self, gang: GangRequest) -> Object | None:
        """The object that asks for room; None when there is nothing to ask."""
        ...

    def pod_fields(self, group: str, queue: str | None, site: Site) -> PodFields:
        """What makes a pod a member of the gang with this name."""
        ...

    def observe(self, raw: Mapping[str, Any]) -> Reservation | None:
        """A reservation as it is now; None for an object that no attempt made."""
        ...

    def report(self, known: Reservation, namespace: str, outcome: AttemptOutcome | None, at: str) -> Object | None:
        """The status of a reservation, to be applied, that says since when (`at`, a timestamp) all pods are ready or,
        with an outcome, that the attempt has ended. None for a scheduler to which neither is reported."""
        ...


def reservation_of(scheduler: str, raw: Mapping[str, Any]) -> Reservation | None:
    """What all schedulers' reservations have in common. One without the label is an earlier version's, and has the
    attempt in its name."""
    meta = raw["metadata"]
    labels = meta.get("labels") or {}
    given = labels.get(LABEL_ATTEMPT) or meta["name"].removeprefix(f"{labels.get(LABEL_JOB, '')}-")
    if not given.isdecimal():
        return None
    terminating = "deletionTimestamp" in meta
    return Reservation(scheduler, meta["name"], meta.get("uid", ""), int(given), terminating=terminating)
