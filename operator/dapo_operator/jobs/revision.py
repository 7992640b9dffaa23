"""Revisions of a job: its job file with all defaults, by digest. A run keeps the one of its first attempt until its
spec is edited. Pure."""

import json
from collections.abc import Mapping
from typing import Any, Final

from dapo_core.errors import SpecError
from dapo_core.jobspec import DAPOJob, DAPOJobSpec, RunPolicy, parse_job
from dapo_operator.jobs.builders.common import digest_of
from dapo_operator.jobs.builders.support import JOB_FILE

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


def revision_of(spec: Mapping[str, Any]) -> str:
    """The digest of a spec, without limits and guards."""
    return digest_of(without_limits(spec, _LEFT_OUT))


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


def job_file_of(raw: Mapping[str, Any], revision: str) -> DAPOJob | None:
    """The job in a revision's ConfigMap; None when it is not that revision's or cannot be read."""
    try:
        file = json.loads(raw["data"][JOB_FILE])
        return parse_job(file) if revision_of(file["spec"]) == revision else None
    except (KeyError, TypeError, ValueError, SpecError):
        return None
