"""Revisions of a job: its job file with all defaults, by digest. A run keeps the one of its first attempt until its
spec is edited; `kubectl scale` and autoscalers change no more of it than the number of rollouts. Pure."""

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from dapo_core.errors import SpecError
from dapo_core.jobspec import DAPOJob, DAPOJobSpec, Rollout, RunPolicy, parse_job
from dapo_operator.jobs.builders.support import JOB_FILE, job_file
from dapo_operator.jobs.job_objects import digest_of

# Groups of the spec that only the operator reads.
OPERATOR_GROUPS: Final = frozenset({"suspend", "managedBy", "topology", "guards"})
# The same of `runPolicy`.
_LIMITS: Final = frozenset(
    {
        "maxRestarts",
        "maxUncountedRestarts",
        "failureRules",
        "backoffSeconds",
        "backoffMaxSeconds",
        "activeDeadlineSeconds",
        "ttlSecondsAfterFinished",
        "startTimeoutSeconds",
        "stallTimeoutSeconds",
        "disruption",
    }
)
# What a revision leaves out: no driver reads it, and it is not about pods.
_LEFT_OUT: Final = OPERATOR_GROUPS - {"topology"}
# The same as attributes.
_LEFT_OUT_FIELDS: Final = [name for name, field in DAPOJobSpec.model_fields.items() if field.alias in _LEFT_OUT]
_LIMIT_FIELDS: Final = [name for name, field in RunPolicy.model_fields.items() if field.alias in _LIMITS]


# Fields of spec.topology.rollout that apply to a running attempt, as limits do.
LIVE: Final = frozenset({"replicas", "minReplicas", "maxReplicas"})
_LIVE_FIELDS: Final = {name for name, field in Rollout.model_fields.items() if field.alias in LIVE}
# Begins a digest of a spec without LIVE. Earlier versions of the operator recorded one of all of it.
_WITHOUT_LIVE: Final = "2:"


@dataclass(frozen=True)
class KeptFile:
    """The job file of a run that this version of the platform, or this number of rollouts, would make otherwise.
    `read` is the revision that was read. `revision` is that of `packed`, its text with the present number of rollouts,
    compressed."""

    read: str
    revision: str
    packed: bytes

    @property
    def text(self) -> str:
        """The file as JSON."""
        return zlib.decompress(self.packed).decode()


def revision_of(spec: Mapping[str, Any]) -> str:
    """The digest of a spec, without limits and guards."""
    return digest_of(without_limits(spec, _LEFT_OUT))


def said_of(spec: Mapping[str, Any]) -> str:
    """The digest of what a user says in a spec about the run: no limits and guards, and not how many rollouts there
    are."""
    topology = group_of(spec, "topology")
    rollout = group_of(topology, "rollout")
    # A group that has nothing else is as good as none: the scale subresource adds it.
    parts = {
        "topology": {key: topology[key] for key in topology.keys() - {"rollout"}},
        "topology.rollout": {key: rollout[key] for key in rollout.keys() - LIVE},
    }
    return _WITHOUT_LIVE + revision_of({**spec, **parts})


def group_of(group: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A group of fields of a spec that may be invalid; empty when there is none."""
    found = group.get(name)
    return found if isinstance(found, Mapping) else {}


def without_limits(spec: Mapping[str, Any], groups: frozenset[str]) -> dict[str, Any]:
    """The spec without these groups and without what limits a run: raising a limit changes nothing of a run."""
    policy = spec.get("runPolicy")
    kept = {key: policy[key] for key in policy.keys() - _LIMITS} if isinstance(policy, Mapping) else policy
    return {key: spec[key] for key in spec.keys() - groups - {"runPolicy"}} | {"runPolicy": kept or None}


def with_limits_of(file: DAPOJob, spec: DAPOJobSpec) -> DAPOJob:
    """A job file with the limits and guards of another spec."""
    limits = {name: getattr(spec.run_policy, name) for name in _LIMIT_FIELDS}
    groups = {name: getattr(spec, name) for name in _LEFT_OUT_FIELDS}
    groups["run_policy"] = file.spec.run_policy.model_copy(update=limits)
    return file.model_copy(update={"spec": file.spec.model_copy(update=groups)})


def job_file_of(raw: Mapping[str, Any], revision: str, rollout: Rollout) -> tuple[KeptFile, DAPOJob] | None:
    """The job file in a revision's ConfigMap, with as many rollouts as `rollout` says, and the job that it describes;
    None when it is not that revision's or cannot be read."""
    try:
        file = json.loads(raw["data"][JOB_FILE])
        if revision_of(file["spec"]) != revision:
            return None
        live = file["spec"]["topology"]["rollout"]
        kept = {key: live[key] for key in live.keys() - LIVE}
        file["spec"]["topology"]["rollout"] = kept | rollout.model_dump(
            mode="json", by_alias=True, exclude_none=True, include=_LIVE_FIELDS
        )
        packed = zlib.compress(job_file(file).encode())
        return KeptFile(revision, revision_of(file["spec"]), packed), parse_job(file)
    except (AttributeError, KeyError, TypeError, ValueError, SpecError):
        return None
