"""One DAPOJob as the operator works on it: parsed once per generation. Pure."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, Final, TypeVar
from weakref import WeakValueDictionary

from pydantic import BaseModel, ValidationError

from dapo_core.errors import Problem, SpecError
from dapo_core.jobspec import DAPOJob, DAPOJobSpec, parse_job
from dapo_core.naming import API_VERSION, KIND, PLURAL, run_id_of
from dapo_core.run.status import DAPOJobStatus, Pinned
from dapo_operator.jobs.builders.pods import claims, template_problems
from dapo_operator.jobs.builders.support import support_objects
from dapo_operator.jobs.gangs.kueue import MULTIKUEUE, PREBUILT, QUEUE_LABEL
from dapo_operator.jobs.job_objects import DIGEST, Site, digest_of
from dapo_operator.jobs.revision import (
    LIVE,
    OPERATOR_GROUPS,
    KeptFile,
    group_of,
    revision_of,
    said_of,
    with_limits_of,
    without_limits,
)
from dapo_operator.kube.objects import Object, ObjectReference, Resource, unix_seconds

JOBS: Final = Resource(API_VERSION, PLURAL)
FINALIZER: Final = "dapo.io/pods"
# The value of `spec.managedBy` that means the same as none.
MANAGER: Final = "dapo.io/operator"
# Fields that an error message names.
_DETAILS: Final = 3
# Begins with the version of what it is computed from.
_SHAPE: Final = "2:"


@dataclass(frozen=True)
class Job:
    """What is fixed for a plan. `parsed` is None when the spec is invalid, and `problems` are why. `shape` and
    `driver_spec` are digests of what the user says about the pods, and of what the driver reads, and `said` of all of
    the spec but limits and the number of rollouts; another version of the platform gives the same. `said_earlier` is
    `said` as earlier versions recorded it, with the number. `held`: it has the operator's finalizer.
    `unscaled` is a digest of all of the spec but the number that `kubectl scale` and autoscalers set.
    `named_run` is `spec.runId`. `queue_label` is the LocalQueue that the job's label names. `prebuilt` is the Workload
    that was made for it.
    `ttl_seconds` is how long it is kept after its end. `kept` is the job file that `parsed` is, where this version of
    the platform may fill in other defaults. Times are Unix seconds."""

    name: str
    namespace: str
    uid: str
    generation: int
    created_at: float
    deleting_since: float | None
    held: bool
    parsed: DAPOJob | None
    problems: tuple[Problem, ...]
    shape: str
    driver_spec: str = ""
    said: str = ""
    said_earlier: str = ""
    unscaled: str = ""
    suspended: bool = False
    managed_by: str | None = None
    named_run: str | None = None
    queue_label: str | None = None
    prebuilt: str | None = None
    ttl_seconds: int | None = None
    known_run_id: str = ""
    kept: KeptFile | None = None
    _digests: dict[str | None, dict[tuple[str, str], str]] = field(
        default_factory=dict, init=False, compare=False, repr=False
    )

    @property
    def spec(self) -> DAPOJobSpec:
        """The spec. Raises ValueError when it is invalid."""
        if self.parsed is None:
            raise ValueError(f"the spec of {self.namespace}/{self.name} is invalid")
        return self.parsed.spec

    @property
    def reference(self) -> ObjectReference:
        """The DAPOJob as its Events name it."""
        return ObjectReference(API_VERSION, KIND, self.namespace, self.name, self.uid)

    @cached_property
    def run_id(self) -> str:
        """The run ID: always the same for one DAPOJob, so that a restarted operator does not start a second run. One
        that the status has is kept: earlier versions made shorter ones."""
        if self.named_run is not None:
            return self.named_run
        return self.known_run_id or run_id_of(self.name, datetime.fromtimestamp(self.created_at, UTC), self.uid)

    @cached_property
    def revision(self) -> str:
        """The digest of the job file of a valid job: its spec with all defaults, but without limits."""
        if self.kept is not None:
            return self.kept.revision
        return revision_of(self.spec.model_dump(mode="json", by_alias=True, exclude_none=True))

    def keeping(self, kept: KeptFile, file: DAPOJob) -> "Job":
        """This job, valid, with the job file that its run reads. Limits and guards are those of the spec."""
        parsed = queued(with_limits_of(file, self.spec), self.queue_label)
        return replace(self, parsed=parsed, kept=kept)

    def is_as_pinned(self, pinned: Pinned) -> bool:
        """Whether the user says what was said when a run took over what the platform has; how many rollouts there are
        does not matter, unless an earlier version recorded it."""
        return pinned.spec in (self.said, self.said_earlier)

    def is_scaled(self, pinned: Pinned) -> bool:
        """Whether the job file differs from the run's by the number of rollouts only."""
        return self.kept is not None and self.kept.read in (pinned.revision, pinned.scaled_from)

    @property
    def is_anothers(self) -> bool:
        """Whether `spec.managedBy` names another controller, as MultiKueue's: nothing is done about the job, except
        that one with the operator's finalizer can be deleted."""
        return self.managed_by not in (None, MANAGER) and not (self.held and self.deleting_since is not None)

    @property
    def is_dispatched(self) -> bool:
        """Whether MultiKueue runs the job in another cluster."""
        return self.managed_by == MULTIKUEUE

    @property
    def accelerator(self) -> str:
        """The extended resource of the job's GPUs; empty for a job on CPUs, and for an invalid one."""
        return (
            self.parsed.spec.topology.gpu_resource if self.parsed is not None and self.spec.topology.layout.gpus else ""
        )

    def support_digests(self, revision: str | None) -> dict[tuple[str, str], str]:
        """Digests of the support objects of a valid job, by kind and name. Computed once: they are compared far more
        often than they change."""
        if revision not in self._digests:
            assert self.parsed is not None
            self._digests.clear()
            self._digests[revision] = {
                (body["kind"], body["metadata"]["name"]): body["metadata"]["annotations"][DIGEST]
                for body in support_objects(self.parsed, self.uid, revision)
            }
        return self._digests[revision]


def job_of(raw: Mapping[str, Any], site: Site) -> Job:
    """The job that the API server's object describes."""
    meta = raw["metadata"]
    spec = raw.get("spec") or {}
    parsed, problems = _parsed(raw)
    queue = queue_label(meta)
    shape = driver_spec = ""
    if parsed is not None:
        problems = [*template_problems(parsed, site), *_queue_problems(parsed, queue)]
        parsed = with_shared_groups(queued(parsed, queue))
        shape, driver_spec = _shape(spec, parsed, queue), digest_of(without_limits(spec, OPERATOR_GROUPS))
        parsed = None if problems else parsed
    return Job(
        name=meta["name"],
        namespace=meta["namespace"],
        uid=meta["uid"],
        generation=meta.get("generation", 1),
        created_at=unix_seconds(meta.get("creationTimestamp")) or 0.0,
        deleting_since=unix_seconds(meta.get("deletionTimestamp")),
        held=FINALIZER in meta.get("finalizers", ()),
        parsed=parsed,
        problems=tuple(problems),
        shape=shape,
        driver_spec=driver_spec,
        said=said_of(spec),
        said_earlier=revision_of(spec),
        unscaled=_unscaled(spec),
        suspended=spec.get("suspend") is True,
        managed_by=spec.get("managedBy"),
        named_run=spec.get("runId") if parsed is not None else None,
        queue_label=queue,
        prebuilt=_prebuilt(meta),
        ttl_seconds=_ttl(spec),
        known_run_id=(raw.get("status") or {}).get("runId") or "",
    )


def _unscaled(spec: Mapping[str, Any]) -> str:
    """The digest of the spec without `topology.rollout.replicas`. A group that has nothing else is as good as none: the
    scale subresource adds it."""
    topology = group_of(spec, "topology")
    rollout = group_of(topology, "rollout")
    parts = {
        "topology": {key: topology[key] for key in topology.keys() - {"rollout"}},
        "topology.rollout": {key: rollout[key] for key in rollout.keys() - {"replicas"}},
    }
    return digest_of({**spec, **parts})


def _ttl(spec: Mapping[str, Any]) -> int | None:
    """`ttlSecondsAfterFinished`, of an invalid spec, too."""
    ttl = group_of(spec, "runPolicy").get("ttlSecondsAfterFinished")
    return ttl if isinstance(ttl, int) else None


def is_edited(recorded: str | None, shape: str) -> bool:
    """Whether the user has changed the pods since an attempt recorded this shape. One that another version computed in
    another way says nothing."""
    return recorded is not None and recorded.startswith(_SHAPE) and recorded != shape


def queue_label(meta: Mapping[str, Any]) -> str | None:
    """The LocalQueue that Kueue's label names. It can be changed without another generation."""
    return (meta.get("labels") or {}).get(QUEUE_LABEL) or None


def _prebuilt(meta: Mapping[str, Any]) -> str | None:
    found = ((meta.get(key) or {}).get(PREBUILT) for key in ("annotations", "labels"))
    return next(filter(None, found), None)


def queued(job: DAPOJob, label: str | None) -> DAPOJob:
    """The job in the LocalQueue that Kueue's label names, as for every other kind of job; None: as its spec says."""
    if label is None:
        return job
    gang = job.spec.run_policy.gang.model_copy(update={"scheduler": "kueue", "queue": label})
    policy = job.spec.run_policy.model_copy(update={"gang": gang})
    return job.model_copy(update={"spec": job.spec.model_copy(update={"run_policy": policy})})


# Groups of all jobs' specs, by their class and content: most jobs of a team differ in few of them.
_GROUPS: Final = WeakValueDictionary[tuple[type[BaseModel], bytes], BaseModel]()
M = TypeVar("M", bound=BaseModel)


def with_shared_groups(job: DAPOJob) -> DAPOJob:
    """An equal job; groups of its spec that another job has, too, exist once. They are frozen."""
    guards = tuple(map(_shared, job.spec.guards))
    return job.model_copy(update={"spec": _with_shared_fields(job.spec).model_copy(update={"guards": guards})})


def _with_shared_fields(group: M) -> M:
    fields = {name: _shared(value) for name, value in group if isinstance(value, BaseModel)}
    return group.model_copy(update=fields) if fields else group


def _shared(group: BaseModel) -> BaseModel:
    # By content, not by equality: 1, 1.0 and True are equal, and what a user wrote into a template is not hashable.
    digest = hashlib.sha256(group.model_dump_json().encode()).digest()
    known = _GROUPS.get((type(group), digest))
    return _GROUPS.setdefault((type(group), digest), _with_shared_fields(group)) if known is None else known


def _queue_problems(job: DAPOJob, label: str | None) -> list[Problem]:
    scheduler, field_name = job.spec.run_policy.gang.scheduler, f"metadata.labels[{QUEUE_LABEL}]"
    if label is None or scheduler in ("none", "kueue"):
        return []
    message = (
        f"{field_name} is {label}, but spec.runPolicy.gang.scheduler is {scheduler}: remove the label, or the "
        "scheduler to leave the job to Kueue."
    )
    return [Problem(field_name, message)]


def _shape(spec: Mapping[str, Any], parsed: DAPOJob, queue: str | None) -> str:
    """The digest of what the user says about the pods. What the platform adds is left out: an upgrade must not end
    attempts that are starting or waiting in a queue. So is the number of rollouts: they come and go."""
    layout, policy = parsed.spec.topology.layout, spec.get("runPolicy") or {}
    topology = {key: value for key, value in (spec.get("topology") or {}).items() if layout.pods.get(key, 1)}
    if (rollout := topology.get("rollout")) is not None:
        topology["rollout"] = {key: rollout[key] for key in rollout.keys() - LIVE}
    said = {
        "topology": topology,
        "claims": claims(parsed.spec),
        "checkpoints": (spec.get("checkpoints") or {}).get("uri"),
        "stores": spec.get("stores"),
        "policy": {key: policy[key] for key in sorted(policy.keys() & {"gang", "gracePeriodSeconds", "restart"})},
    }
    return _SHAPE + digest_of(said | ({"queue": queue} if queue else {}))


class UnreadableStatusError(Exception):
    """A status whose content this version does not know: another version, or another controller, wrote it."""


def status_of(raw: Mapping[str, Any]) -> DAPOJobStatus:
    """The status; empty when there is none. Raises UnreadableStatusError, which names the fields: nothing may be
    concluded from such a status, least of all that the job has no attempt."""
    try:
        return DAPOJobStatus.model_validate(raw.get("status") or {})
    except ValidationError as error:
        details = [f"status.{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors()]
        more = f" (and {len(details) - _DETAILS} more)" if len(details) > _DETAILS else ""
        raise UnreadableStatusError("; ".join(details[:_DETAILS]) + more) from error


def with_finalizer(raw: Mapping[str, Any], uid: str) -> Object:
    """The patch that sets the operator's finalizer on the job of this UID. It replaces the whole list: it has those of
    other controllers as of `raw`, and applies to `raw` only."""
    return _finalizers(raw, uid, [FINALIZER])


def without_finalizer(raw: Mapping[str, Any], uid: str) -> Object:
    """The patch that removes the operator's finalizer; otherwise as `with_finalizer`."""
    return _finalizers(raw, uid, [])


def _finalizers(raw: Mapping[str, Any], uid: str, own: list[str]) -> Object:
    meta = raw["metadata"]
    others = [name for name in meta.get("finalizers", []) if name != FINALIZER]
    return {"metadata": {"uid": uid, "finalizers": [*others, *own], "resourceVersion": meta["resourceVersion"]}}


def status_body(status: DAPOJobStatus) -> Object:
    """The status as JSON, as it is written."""
    return status.model_dump(mode="json", by_alias=True, exclude_none=True)


def _parsed(raw: Mapping[str, Any]) -> tuple[DAPOJob | None, list[Problem]]:
    try:
        return parse_job(dict(raw)), []
    except SpecError as error:
        return None, error.problems
