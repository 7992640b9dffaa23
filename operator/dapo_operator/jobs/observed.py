"""What the operator observes of one job: its pods as small values, support objects, refusals and progress. Pure."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from dapo_core.naming import LABEL_ATTEMPT, LABEL_INDEX, LABEL_LIFE, LABEL_ROLE, ROLES, Role
from dapo_core.run.formatting import printable
from dapo_core.run.guards import Alert
from dapo_core.run.last_words import LastWords
from dapo_core.run.reasons import Reason
from dapo_core.run.redaction import text_without_secrets
from dapo_core.run.status import CheckpointRef, Progress, TimeSpent
from dapo_operator.jobs.gangs.gang_scheduler import Reservation
from dapo_operator.jobs.gangs.kueue import GROUP_LABEL, WORKLOAD_ANNOTATION
from dapo_operator.jobs.node_state import Node
from dapo_operator.kube.objects import controller_uid, unix_seconds

CONTAINER: Final = "dapo"
Phase = Literal["Pending", "Running", "Succeeded", "Failed", "Unknown"]
RefusalKind = Literal["quota", "permanent", "name", "gang", "other"]
# "readonly": it can be read, but not written; runs cannot report their steps.
StoreState = Literal["none", "ok", "readonly", "down"]

# Why the control plane ended a pod, as reasons of the failure policy (conditions DisruptionTarget and Kueue's own).
_DISRUPTIONS: Final = {
    "PreemptionByScheduler": Reason.PREEMPTED,
    "PreemptionByKubeScheduler": Reason.PREEMPTED,
    "EvictionByEvictionAPI": Reason.EVICTED,
    "TerminationByKubelet": Reason.EVICTED,
    "DeletionByTaintManager": Reason.NODE_LOST,
    "DeletionByPodGC": Reason.NODE_LOST,
    "StoppedByKueue": Reason.PREEMPTED,
}
# Why the kubelet or the node controller failed a pod (status.reason). The kubelet's other reasons for a rejection, such
# as OutOfnvidia.com/gpu or TopologyAffinityError, are recognized by a pod that failed before any container ran.
_POD_REASONS: Final = {
    "Evicted": Reason.EVICTED,
    "Preempting": Reason.PREEMPTED,
    "NodeLost": Reason.NODE_LOST,
    "NodeAffinity": Reason.NODE_REJECTED,
    "Shutdown": Reason.EVICTED,
    "NodeShutdown": Reason.EVICTED,
    "Terminated": Reason.EVICTED,
    "UnexpectedAdmissionError": Reason.NODE_REJECTED,
}
STATUS_UNREADABLE: Final = "StatusUnreadable"
_OUT_OF: Final = "OutOf"
_REJECTED: Final = "Pod was rejected: "
# Waiting states that every container passes on its way to running.
_ORDINARY: Final = frozenset({"ContainerCreating", "PodInitializing", ""})


@dataclass(frozen=True, slots=True)
class Pod:
    """One pod of a job.

    `created_at` is in Unix seconds. `owned`: by this DAPOJob, not by an earlier one of its name. `life` counts the pods
    of one rollout. `node` is the name of its node, `address` its IP address. `exit_code`, `ended_at` (Unix seconds) and
    `words` (the last words) are those of the container `dapo`. `silent_since` (Unix seconds of its node's clock) is
    since when that container runs without being ready, as its kubelet says. `disruption` is the failure policy's reason
    when the cluster took the pod. `trouble` is a sentence about what keeps it from running. `detail` is what the
    cluster says about a failed pod, or which of its init containers failed. `finalizers` keep it after its deletion.
    `delete_by` (Unix seconds) is when a deletion should be over. `image` is that of the container `dapo` as it was
    named, `image_by_digest` as the node has run it. `workload` is that of Kueue in which it is counted; `grouped` is a
    pod of one of Kueue's pod groups, as earlier versions of the operator made them.
    """

    name: str
    uid: str
    role: Role
    attempt: int
    index: int
    life: int = 1
    created_at: float | None = None
    owned: bool = True
    phase: Phase = "Pending"
    ready: bool = False
    silent_since: float | None = None
    scheduled: bool = False
    node: str | None = None
    address: str | None = None
    gated: bool = False
    started: bool = False
    deleting: bool = False
    delete_by: float | None = None
    finalizers: tuple[str, ...] = ()
    exit_code: int | None = None
    ended_at: float | None = None
    out_of_memory: bool = False
    words: LastWords | None = None
    disruption: str | None = None
    detail: str | None = None
    trouble: str | None = None
    trouble_reason: str | None = None
    image: str = ""
    image_by_digest: str | None = None
    workload: str | None = None
    grouped: bool = False

    @property
    def finished(self) -> bool:
        """Whether the trainer's container has ended."""
        return self.phase in ("Succeeded", "Failed") or self.exit_code is not None

    @property
    def over(self) -> bool:
        """Whether all containers have ended, including sidecars."""
        return self.phase in ("Succeeded", "Failed")


@dataclass(frozen=True)
class Refusal:
    """The API server's last refusal of an object of this attempt. `what` is the object's kind and name; `at` is in Unix
    seconds; `tries` counts refusals in a row."""

    kind: RefusalKind
    what: str
    message: str
    at: float
    attempt: int
    tries: int = 1


@dataclass(frozen=True)
class Observed:
    """Everything a plan is made from besides the job and its status.

    `gone` are deleted rollouts, and other deleted pods whose last state tells why they ended. `undeletable` is the last
    refusal to delete a pod. `nodes` are those nodes of the pods of which there is something to say. `offering` are all
    nodes that take pods and offer GPUs as the job asks for, with their number (1 for a job without GPUs; None: nodes
    are not watched). `support` maps (kind, name) to the digest of what was applied. `acceptable`: pods that were
    refused would be accepted now. `store_since` (Unix seconds) is when the metadata store became readable and writable
    again, `store_failed_at` when it was last seen to work before it failed. `recorded_attempt` is the newest attempt
    that the store knows, and `reached` the last step of it. `alerts` are None until the guards were judged.
    `run_known`: the store was asked for the run; `run_namespace` is None for one that it does not know. `run_pods` are
    pods of this run that another DAPOJob owns. `reservations` are the job's own with gang schedulers. `flavors` are the
    specs of Kueue's ResourceFlavors by name, of those that could be read. `queue_position` is the place of the newest
    attempt in its queue, from 1 on, if it is among the first.
    """

    pods: tuple[Pod, ...] = ()
    gone: tuple[Pod, ...] = ()
    nodes: Mapping[str, Node] = field(default_factory=dict)
    offering: Mapping[str, int] | None = None
    support: Mapping[tuple[str, str], str] = field(default_factory=dict)
    refusal: Refusal | None = None
    undeletable: Refusal | None = None
    acceptable: bool = False
    store: StoreState = "none"
    store_since: float = 0.0
    store_failed_at: float = 0.0
    progress: Progress | None = None
    time: TimeSpent | None = None
    checkpoint: CheckpointRef | None = None
    recorded_attempt: int = 0
    reached: int | None = None
    alerts: Sequence[Alert] | None = ()
    run_known: bool = True
    run_namespace: str | None = None
    run_pods: tuple[str, ...] = ()
    reservations: tuple[Reservation, ...] = ()
    flavors: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    queue_position: int | None = None


def pod_of(raw: Mapping[str, Any], owner_uid: str | None = None) -> Pod | None:
    """The pod as a small value; None when its labels are not those of a job's pod. `owner_uid` None: any owner."""
    meta, spec, status = raw["metadata"], raw.get("spec", {}), raw.get("status", {})
    labels = meta.get("labels", {})
    role, attempt, index = (labels.get(label, "") for label in (LABEL_ROLE, LABEL_ATTEMPT, LABEL_INDEX))
    life = labels.get(LABEL_LIFE, "1")
    if role not in ROLES or not (attempt.isdecimal() and index.isdecimal() and life.isdecimal()):
        return None
    pod = Pod(
        name=meta["name"],
        uid=meta.get("uid", ""),
        role=ROLES[ROLES.index(role)],  # one string for all pods
        attempt=int(attempt),
        index=int(index),
        life=int(life),
        created_at=unix_seconds(meta.get("creationTimestamp")),
        owned=owner_uid is None or controller_uid(raw) == owner_uid,
        scheduled=bool(spec.get("nodeName")),
        node=sys.intern(str(spec["nodeName"])) if spec.get("nodeName") else None,
        gated=bool(spec.get("schedulingGates")),
        deleting="deletionTimestamp" in meta,
        delete_by=unix_seconds(meta.get("deletionTimestamp")),
        finalizers=tuple(meta.get("finalizers", ())),
        workload=(meta.get("annotations") or {}).get(WORKLOAD_ANNOTATION),
        grouped=GROUP_LABEL in labels,
    )
    try:
        return _with_status(pod, spec, status)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        # It exists all the same, and is to be deleted with the others.
        return replace(pod, trouble=f"its status cannot be parsed ({error!r})", trouble_reason=STATUS_UNREADABLE)


def _with_status(pod: Pod, spec: Mapping[str, Any], status: Mapping[str, Any]) -> Pod:
    conditions = {condition["type"]: condition for condition in status.get("conditions", ())}
    container = _container(status)
    ended = container.get("state", {}).get("terminated") or {}
    reason, trouble = _trouble(spec, status, conditions, container)
    # Strings that the pods of all jobs share.
    image = sys.intern(_image(spec))
    by_digest = image_by_digest(image, container.get("imageID", ""))
    return replace(
        pod,
        phase=status.get("phase", "Pending"),
        address=status.get("podIP"),
        ready=_holds(conditions, "Ready"),
        silent_since=_silent_since(status, conditions),
        started="running" in container.get("state", {}) or bool(ended),
        exit_code=ended.get("exitCode"),
        ended_at=unix_seconds(ended.get("finishedAt")),
        out_of_memory=ended.get("reason") == Reason.OUT_OF_MEMORY,
        words=_words(ended.get("message")),
        disruption=_disruption(status, conditions),
        detail=_detail(pod.name, status, ended),
        trouble=trouble,
        trouble_reason=reason,
        image=image,
        image_by_digest=sys.intern(by_digest) if by_digest else None,
    )


def _image(spec: Mapping[str, Any]) -> str:
    images = (entry.get("image", "") for entry in spec.get("containers", ()) if entry.get("name") == CONTAINER)
    return next(images, "")


def _container(status: Mapping[str, Any]) -> Mapping[str, Any]:
    return next((entry for entry in status.get("containerStatuses", ()) if entry.get("name") == CONTAINER), {})


def _holds(conditions: Mapping[str, Mapping[str, Any]], kind: str) -> bool:
    return conditions.get(kind, {}).get("status") == "True"


def _silent_since(status: Mapping[str, Any], conditions: Mapping[str, Mapping[str, Any]]) -> float | None:
    """Since when the container `dapo`, and no other, runs without being ready. Condition Ready says less: the node
    controller takes it from all pods of a node that it does not hear."""
    unready = [entry for entry in status.get("containerStatuses", ()) if not entry.get("ready")]
    if [entry.get("name") for entry in unready] != [CONTAINER] or "running" not in unready[0].get("state", {}):
        return None
    return unix_seconds(conditions.get("ContainersReady", {}).get("lastTransitionTime"))


def _words(message: str | None) -> LastWords | None:
    """The last words, or what the kubelet took from the end of the log in their place."""
    if not message:
        return None
    return LastWords.parse(message) or LastWords("", _end(message, 500))


def _end(message: str, characters: int) -> str:
    """The end of a log or a message of any program, for statuses, events and pages: without secrets."""
    return text_without_secrets(printable(message.strip()))[-characters:]


def _disruption(status: Mapping[str, Any], conditions: Mapping[str, Mapping[str, Any]]) -> str | None:
    for kind in ("DisruptionTarget", "TerminationTarget"):
        if _holds(conditions, kind):
            return _DISRUPTIONS.get(conditions[kind].get("reason", ""), Reason.EVICTED)
    if status.get("phase") != "Failed":
        return None
    reason = status.get("reason", "")
    if reason not in _POD_REASONS and (reason.startswith(_OUT_OF) or not _has_run(status)):
        return Reason.NODE_REJECTED
    return _POD_REASONS.get(reason)


def _has_run(status: Mapping[str, Any]) -> bool:
    """Whether any container of the pod was ever started."""
    entries = (*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ()))
    return any({"running", "terminated"} & {*entry.get("state", {}), *entry.get("lastState", {})} for entry in entries)


def _detail(name: str, status: Mapping[str, Any], ended: Mapping[str, Any]) -> str | None:
    """A sentence about a failed pod that its container does not explain; None when there is none."""
    if status.get("phase") != "Failed":
        return None
    for entry in status.get("initContainerStatuses", ()) if not ended else ():
        end = entry.get("state", {}).get("terminated") or {}
        if end.get("exitCode"):
            container, why = entry.get("name", ""), _end(end.get("message") or end.get("reason") or "", 300)
            code = f"Init container {container} of {name} ended with exit code {end['exitCode']}"
            return f"{code}{f' ({why})' if why else ''}; see `kubectl logs {name} -c {container}`."
    reason, message = status.get("reason", ""), status.get("message", "").strip().removeprefix(_REJECTED)
    return ": ".join(text for text in (reason, message) if text) or None


def _trouble(
    spec: Mapping[str, Any],
    status: Mapping[str, Any],
    conditions: Mapping[str, Mapping[str, Any]],
    container: Mapping[str, Any],
) -> tuple[str | None, str | None]:
    """What keeps a pod from running: a reason and a sentence; (None, None) when nothing does."""
    for entry in (*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ()), container):
        waiting = entry.get("state", {}).get("waiting", {})
        if waiting.get("reason", "") not in _ORDINARY:
            return waiting["reason"], f"{waiting['reason']}: {waiting.get('message', '')}".rstrip(": ")
    scheduled = conditions.get("PodScheduled", {})
    if scheduled.get("status") == "False" and not spec.get("nodeName"):
        return Reason.UNSCHEDULABLE, scheduled.get("message") or scheduled.get("reason", "")
    return None, None


def image_by_digest(image: str, image_id: str) -> str | None:
    """An image with the digest that the kubelet reports (`imageID`) in place of its tag. None when there is none, or it
    is not of this name: an image that was loaded into the node has an ID that no registry knows."""
    repository, _, digest = image_id.removeprefix("docker-pullable://").partition("@")
    named = _repository(image)
    same = _without_default_registry(named) == _without_default_registry(repository)
    return f"{named}@{digest}" if same and digest.startswith("sha256:") else None


def _repository(image: str) -> str:
    name = image.partition("@")[0]
    repository, colon, tag = name.rpartition(":")
    # The colon of a registry's port is followed by a path.
    return repository if colon and "/" not in tag else name


def _without_default_registry(repository: str) -> str:
    return repository.removeprefix("docker.io/").removeprefix("library/")
