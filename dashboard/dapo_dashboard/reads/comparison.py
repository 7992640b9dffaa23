"""Comparing runs: the differences of their jobs, bands over seeds, best values. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Final

from dapo_core.db import Bucket, RunRow
from dapo_core.jobspec.leaves import leaves
from dapo_dashboard.charts.buckets import Curve
from dapo_dashboard.reads.redact import without_secrets

MAX_COMPARED: Final = 20
BY_RUN: Final = "each run"
BY_JOB: Final = "job (bands over its runs)"
# A job's name does not change what it does.
_NAMES: Final = ("apiVersion", "kind", "metadata")


@dataclass(frozen=True)
class RunGroup:
    """Runs that are drawn as one curve."""

    name: str
    run_ids: tuple[str, ...]


@dataclass(frozen=True)
class CurveOutcome:
    """Of one metric of a run: the last value, and the best with its step."""

    final: float
    best: float
    best_step: int


def groups(runs: Sequence[RunRow], by: str) -> list[RunGroup]:
    """The runs grouped by run, by job or by the value of a tag, in the order in which they were chosen."""
    members: dict[str, list[str]] = {}
    for run in runs:
        members.setdefault(_group_name(run, by), []).append(run.run_id)
    return [RunGroup(name, tuple(ids)) for name, ids in members.items()]


def groupings(runs: Sequence[RunRow]) -> list[str]:
    """The ways to group these runs: by run, by job, and by each tag that any of them has."""
    return [BY_RUN, BY_JOB, *sorted({f"tag {name}" for run in runs for name in run.tags})]


def _group_name(run: RunRow, by: str) -> str:
    if by == BY_RUN:
        return run.run_id
    if by == BY_JOB:
        return run.name
    return str(run.tags.get(by.removeprefix("tag "), "no tag"))


def differences(runs: Sequence[RunRow]) -> dict[str, list[str]]:
    """The fields in which the jobs differ, with each run's value as text, in the order of `runs`."""
    jobs = [_fields(run.spec) for run in runs]
    paths = list(dict.fromkeys(path for job in jobs for path in job))
    rows = {path.removeprefix("spec."): [_text(job, path) for job in jobs] for path in paths}
    return {path: values for path, values in rows.items() if len(set(values)) > 1}


def _fields(job: Mapping[str, Any]) -> dict[str, Any]:
    named = {key: value for key, value in without_secrets(job).items() if key not in _NAMES}
    return {path: value for path, value in leaves(named) if value != {}}


def _text(job: Mapping[str, Any], path: str) -> str:
    return str(job[path]) if path in job else "-"


def band(curves: Sequence[Curve]) -> list[Bucket]:
    """One curve out of several on their common steps: their mean, with their minimum and maximum."""
    at: dict[int, list[Bucket]] = {}
    for curve in curves:
        for bucket in curve:
            at.setdefault(bucket.step_to, []).append(bucket)
    # Only common steps: a shorter curve would bend the mean where it stops.
    return [_joined(buckets) for _, buckets in sorted(at.items()) if len(buckets) == len(curves)] if at else []


def _joined(buckets: Sequence[Bucket]) -> Bucket:
    means = [bucket.mean for bucket in buckets if bucket.mean is not None]
    lasts = [bucket.last for bucket in buckets if bucket.last is not None]
    wide = len(buckets) > 1
    lows = means if wide else [bucket.min for bucket in buckets if bucket.min is not None]
    highs = means if wide else [bucket.max for bucket in buckets if bucket.max is not None]
    return Bucket(
        min(bucket.step_from for bucket in buckets),
        buckets[0].step_to,
        min(lows, default=None),
        max(highs, default=None),
        fmean(means) if means else None,
        fmean(lasts) if lasts else None,
        len(buckets),
        next((bucket.flag for bucket in buckets if bucket.flag), None),
    )


def outcome(curve: Curve, *, lower_is_better: bool = False) -> CurveOutcome | None:
    """None for a curve without a finite value."""
    ends = [(bucket.step_to, bucket.last) for bucket in curve if bucket.last is not None]
    if not ends:
        return None
    extremes = [
        (value, bucket.step_to)
        for bucket in curve
        if (value := bucket.min if lower_is_better else bucket.max) is not None
    ]
    best, step = min(extremes) if lower_is_better else max(extremes, key=lambda extreme: (extreme[0], -extreme[1]))
    return CurveOutcome(ends[-1][1], best, step)
