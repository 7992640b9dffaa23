"""Comparing runs: the differences of their jobs, bands over seeds, what came out of them. Pure."""

import json
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, stdev
from typing import Any, Final, Literal

from dapo_core.db import Bucket, Flag, RunRow
from dapo_core.jobspec.leaves import leaves
from dapo_core.run import metrics
from dapo_core.run.annotations import NONE, RunAnnotations
from dapo_core.run.redaction import without_secrets
from dapo_core.run.validations import ValidationResult
from dapo_dashboard.charts.buckets import Curve

MAX_COMPARED: Final = 20
# Of a job as JSON: the operator takes none with a longer spec.
MAX_JOB: Final = 2**18
FINAL_STEPS: Final = 10
BY_RUN: Final = "each run"
BY_JOB: Final = "job (bands over its runs)"
BY_PEOPLE: Final = "people's tags"
Spread = Literal["range", "standard error", "standard deviation"]
SPREADS: Final[tuple[Spread, ...]] = ("range", "standard error", "standard deviation")
"""What a band over runs is: from their minimum to the maximum, or about their mean."""
# A job's name does not change what it does.
_NAMES: Final = ("apiVersion", "kind", "metadata")


@dataclass(frozen=True)
class RunGroup:
    """Runs that are drawn as one curve."""

    name: str
    run_ids: tuple[str, ...]


@dataclass(frozen=True)
class Outcome:
    """One number of each run that has it, by run."""

    title: str
    unit: str
    values: Mapping[str, float]


def groups(runs: Sequence[RunRow], by: str, said: Mapping[str, RunAnnotations] = {}) -> list[RunGroup]:
    """The runs grouped by run, by job, by the value of a tag or of a field, in the order in which they were chosen, or
    by the tags in what people have `said` of them."""
    if by == BY_PEOPLE:
        return _groups_of_people(runs, said)
    members: dict[str, list[str]] = {}
    values = differences(runs).get(by.removeprefix("field "), ()) if by.startswith("field ") else ()
    for position, run in enumerate(runs):
        name = values[position] if values else _group_name(run, by)
        members.setdefault(name, []).append(run.run_id)
    return [RunGroup(name, tuple(ids)) for name, ids in members.items()]


def _groups_of_people(runs: Sequence[RunRow], said: Mapping[str, RunAnnotations]) -> list[RunGroup]:
    """A run with several tags is in each of their groups. At most MAX_COMPARED groups: those of the most runs."""
    members: dict[str, list[str]] = {}
    for run in runs:
        for tag in said.get(run.run_id, NONE).tags or ("no tag",):
            members.setdefault(tag, []).append(run.run_id)
    most = sorted(members.items(), key=lambda item: -len(item[1]))[:MAX_COMPARED]
    return [RunGroup(tag, tuple(ids)) for tag, ids in most]


def groupings(runs: Sequence[RunRow], said: Mapping[str, RunAnnotations] = {}) -> list[str]:
    """The ways to group these runs: by run, by job, by people's tags if there are any, by each tag that any of the jobs
    has, and by each field in which their jobs differ."""
    tags = sorted({f"tag {name}" for run in runs for name in run.tags})
    people = [BY_PEOPLE] if any(said.get(run.run_id, NONE).tags for run in runs) else []
    return [BY_RUN, BY_JOB, *people, *tags, *(f"field {path}" for path in differences(runs))]


def _group_name(run: RunRow, by: str) -> str:
    if by == BY_RUN:
        return run.run_id
    if by == BY_JOB:
        return run.name
    if by.startswith("field "):  # in which none of these jobs differ
        return "all runs"
    return str(run.tags.get(by.removeprefix("tag "), "no tag"))


def differences(runs: Sequence[RunRow]) -> dict[str, list[str]]:
    """The fields in which the jobs differ, with each run's value as text, in the order of `runs`."""
    jobs = [_fields(run.spec) for run in runs]
    paths = list(dict.fromkeys(path for job in jobs for path in job))
    rows = {path.removeprefix("spec."): [_text(job, path) for job in jobs] for path in paths}
    return {path: values for path, values in rows.items() if len(set(values)) > 1}


def is_long(content: object) -> bool:
    """Whether hiding secrets in it, and writing it as YAML, would hold up all viewers: five seconds for a megabyte."""
    return len(json.dumps(content, default=str)) > MAX_JOB


def _fields(job: Mapping[str, Any]) -> dict[str, Any]:
    if is_long(job):
        return {"spec": f"more than {MAX_JOB:,} characters"}
    named = {key: value for key, value in without_secrets(job).items() if key not in _NAMES}
    return {path: value for path, value in leaves(named) if value != {}}


def _text(job: Mapping[str, Any], path: str) -> str:
    return str(job[path]) if path in job else "-"


def band(curves: Sequence[Curve], spread: Spread = "range") -> list[Bucket]:
    """One curve out of several: their mean and `spread` about it at every step that any of them has, over those that
    have begun and not ended there; `count` is how many. Between its own steps a curve is a straight line: it may have
    been measured at other steps than the others."""
    if len(curves) < 2:
        return list(curves[0]) if curves else []
    starts: dict[int, int] = {}
    flags: dict[int, Flag] = {}
    for bucket in (bucket for curve in curves for bucket in curve):
        starts[bucket.step_to] = min(bucket.step_from, starts.get(bucket.step_to, bucket.step_from))
        if bucket.flag:
            flags[bucket.step_to] = bucket.flag
    steps = sorted(starts)
    values = [_between(curve, steps) for curve in curves]
    return [
        _joined(starts[step], step, [value for value in at if value is not None], flags.get(step), spread)
        for step, at in zip(steps, zip(*values, strict=True), strict=True)
    ]


def _between(curve: Curve, steps: Sequence[int]) -> list[float | None]:
    """The curve's means at these steps; None before its first and after its last."""
    known = [(bucket.step_to, bucket.mean) for bucket in curve if bucket.mean is not None]
    if not known:
        return [None] * len(steps)
    own = [step for step, _ in known]
    return [_at(known, bisect_left(own, step), step) for step in steps]


def _at(known: Sequence[tuple[int, float]], place: int, step: int) -> float | None:
    """The line through the points `known` at a step; `place` is that of the first point at or after it."""
    if place == len(known):
        return None
    after, value = known[place]
    if after == step:
        return value
    if place == 0:
        return None
    before, start = known[place - 1]
    return start + (value - start) * (step - before) / (after - before)


def _joined(step_from: int, step_to: int, means: Sequence[float], flag: Flag | None, spread: Spread) -> Bucket:
    mean = fmean(means) if means else None
    low, high = min(means, default=None), max(means, default=None)
    if mean is not None and spread != "range":
        # Of one run nothing is known about the spread: the band has no width there.
        width = stdev(means) if len(means) > 1 else 0.0
        width /= sqrt(len(means)) if spread == "standard error" else 1.0
        low, high = mean - width, mean + width
    return Bucket(step_from, step_to, low, high, mean, mean, len(means), flag)


def final(curve: Curve) -> float | None:
    """The mean of the last `FINAL_STEPS` steps: one step's value is noise. None for a curve without a finite value."""
    total, count = 0.0, 0
    for bucket in reversed(curve):
        if count >= FINAL_STEPS:
            break
        if bucket.mean is not None:
            total, count = total + bucket.mean * bucket.count, count + bucket.count
    return total / count if count else None


def outcomes(
    run_ids: Sequence[str],
    validations: Mapping[str, Sequence[ValidationResult]],
    series: Mapping[tuple[str, str], Curve],
    names: Sequence[str],
) -> list[Outcome]:
    """What the runs are compared by: their best and last validations, then how the other metrics `names` ended.

    The best of a metric that is not a validation is not among them: it is the step with the most noise."""
    results = {run_id: {one.validation: one for one in validations.get(run_id, ())} for run_id in run_ids}
    sets = sorted({one for of_run in results.values() for one in of_run}, key=lambda one: (one.set_name, one.samples))
    found: list[Outcome] = []
    for one in sets:
        title = f"{one.set_name} {one.title}"
        known = {run_id: of_run[one] for run_id, of_run in results.items() if one in of_run}
        found += [
            Outcome(f"{title}, best", "%", {run_id: 100 * result.best for run_id, result in known.items()}),
            Outcome(f"{title}, best at step", "", {run_id: result.best_step for run_id, result in known.items()}),
            Outcome(f"{title}, last", "%", {run_id: 100 * result.last for run_id, result in known.items()}),
        ]
    return found + [_final_outcome(run_ids, name, series) for name in names]


def _final_outcome(run_ids: Sequence[str], name: str, series: Mapping[tuple[str, str], Curve]) -> Outcome:
    is_share = metrics.in_percent(name)
    ends = {run_id: final(series.get((run_id, name), ())) for run_id in run_ids}
    values = {run_id: (100 if is_share else 1) * end for run_id, end in ends.items() if end is not None}
    return Outcome(f"{metrics.title_of(name)}, last {FINAL_STEPS} steps", "%" if is_share else "", values)
