"""The table of runs by group: what the runs of a job, a tag or a value of a field came to, in one row. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, stdev
from typing import Any, Final

from dapo_core.db import RunTableRow
from dapo_core.run.annotations import NONE, RunAnnotations
from dapo_core.run.metrics import Headline
from dapo_dashboard.escaping import shown
from dapo_dashboard.reads import comparison
from dapo_dashboard.reads.chosen_columns import FIELD, USUAL_FIELDS, Extras
from dapo_dashboard.reads.run_columns import last, state_label
from dapo_dashboard.reads.run_list import Beside

BY_JOB: Final = "job"
BY_PEOPLE: Final = comparison.BY_PEOPLE
TAG: Final = "tag "
# More are no overview.
MAX_GROUPS: Final = 500


@dataclass(frozen=True)
class RunsOfGroup:
    """Runs that are one row."""

    name: str
    rows: Sequence[RunTableRow]


def groupings(rows: Sequence[RunTableRow], said: Mapping[str, RunAnnotations]) -> list[str]:
    """The ways to group these runs that are offered: by job, namespace, owner and state, by people's tags if there are
    any, by each tag of the jobs, and by some fields. Any other field can be typed."""
    tags = sorted({f"{TAG}{name}" for row in rows for name in row.tags})
    people = [BY_PEOPLE] if any(said.get(row.run_id, NONE).tags for row in rows) else []
    return [BY_JOB, "namespace", "owner", "state", *people, *tags, *(f"{FIELD}{path}" for path in USUAL_FIELDS)]


def grouped(rows: Sequence[RunTableRow], by: str, beside: Beside, extras: Extras) -> list[RunsOfGroup]:
    """The runs by group, the group with the best mean validation first; at most MAX_GROUPS, those of the most runs. A
    run with several of people's tags is in each of their groups. `extras` has the field that is grouped `by`."""
    members: dict[str, list[RunTableRow]] = {}
    for row in rows:
        for name in _names(row, by, beside, extras):
            members.setdefault(name, []).append(row)
    most = sorted(members.items(), key=lambda item: -len(item[1]))[:MAX_GROUPS]
    groups = [RunsOfGroup(name, tuple(of_group)) for name, of_group in most]
    return sorted(groups, key=lambda group: (-(_mean(_bests(group, beside)) or 0.0), group.name))


def _names(row: RunTableRow, by: str, beside: Beside, extras: Extras) -> Sequence[str]:
    if by == BY_PEOPLE:
        return list(beside.said.get(row.run_id, NONE).tags) or ["no tag"]
    if by.startswith(TAG):
        return [str(row.tags.get(by.removeprefix(TAG), "no tag"))]
    if by.startswith(FIELD):
        value = extras.get(by, {}).get(row.run_id)
        return ["-" if value is None else str(value)]
    others = {"namespace": row.namespace, "owner": row.owner or "-", "state": state_label(row.state)}
    return [others.get(by, row.name)]


def columns(groups: Sequence[RunsOfGroup], beside: Beside) -> dict[str, list[Any]]:
    """The groups by column. Validations are in percent: the mean of the runs' last and best ones, the standard error of
    the latter over runs, and the highest."""
    bests = [_bests(group, beside) for group in groups]
    return {
        "Group": [shown(group.name, 120) for group in groups],
        "Runs": [len(group.rows) for group in groups],
        "Running": [_count(group, "Running") for group in groups],
        "Failed": [_count(group, "Failed") for group in groups],
        "Alerts": [sum(row.alerts for row in group.rows) or None for group in groups],
        "Validation": [
            _mean([100 * found.last for row in group.rows if (found := beside.results.get(row.run_id))])
            for group in groups
        ],
        "Best": [_mean(each) for each in bests],
        "Standard error": [stdev(each) / sqrt(len(each)) if len(each) > 1 else None for each in bests],
        "Highest": [max(each, default=None) for each in bests],
        "Reward": [
            _mean([value for row in group.rows if (value := last(row, Headline.REWARD)) is not None])
            for group in groups
        ],
    }


def _bests(group: RunsOfGroup, beside: Beside) -> list[float]:
    return [100 * found.best for row in group.rows if (found := beside.results.get(row.run_id))]


def _count(group: RunsOfGroup, state: str) -> int | None:
    return sum(row.state == state for row in group.rows) or None


def _mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None
