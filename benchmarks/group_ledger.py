"""Whether each group of some steps was decided on once: the driver's record of the groups against the data queue, from
which it read them for the update, and against what Postgres has of the same steps. Pure but for `read_records`.
"""

import io
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from dapo_core.naming import groups_key
from dapo_core.objectstore import ObjectNotFoundError, ObjectStore
from dapo_core.run import metrics
from dapo_core.run.fault_outcomes import ACCOUNT_METRICS
from dapo_core.run.recording import Fate, RecordedGroup
from dapo_core.run.store_rows import CurvePoint

# Attempt and step.
Recorded = tuple[int, int]
# Groups of one verdict, which are left out, and those that lost their responses.
_REJECTED: Final = {Fate.ALL_RIGHT, Fate.ALL_WRONG, Fate.SAME_SCORE, Fate.LOST}


@dataclass(frozen=True)
class GroupLedger:
    """`unrecorded`: steps without a record of their groups. `twice`: groups that were decided on more than once.
    `unread`: groups that were trained on, but whose responses were not in the data queue. `differing`: steps of which
    Postgres counts other groups than the record."""

    steps: int
    groups: int
    trained: int
    unrecorded: Sequence[int]
    twice: Sequence[str]
    unread: Sequence[str]
    differing: Sequence[int]

    @property
    def is_balanced(self) -> bool:
        """Whether no group is missing or there twice."""
        return not (self.unrecorded or self.twice or self.unread or self.differing)

    def __str__(self) -> str:
        return (
            f"Records of {self.steps} steps: {self.groups} groups, {self.trained} trained on; "
            f"{len(self.twice)} decided on twice, {len(self.unread)} not in the data queue, "
            f"{len(self.differing)} steps unlike Postgres, {len(self.unrecorded)} without a record."
        )


def ledger_of(
    curves: Mapping[str, Sequence[CurvePoint]], records: Mapping[Recorded, Sequence[RecordedGroup]]
) -> GroupLedger:
    """`curves`: those of ACCOUNT_METRICS in Postgres; `records`: the groups of the same steps."""
    counts: dict[Recorded, dict[str, float]] = {}
    for name in ACCOUNT_METRICS:
        for point in curves.get(name, ()):
            if point.value is not None:
                counts.setdefault((point.attempt, point.step), {})[name] = point.value
    groups = [group for each in counts for group in records.get(each, ())]
    trained = [group for group in groups if group.fate == Fate.TRAINED]
    times = Counter(group.uid for group in groups)
    return GroupLedger(
        steps=len(counts),
        groups=len(groups),
        trained=len(trained),
        unrecorded=sorted(step for attempt, step in counts if (attempt, step) not in records),
        twice=sorted(uid for uid, count in times.items() if count > 1),
        unread=sorted(group.uid for group in trained if len(group.advantages) != len(group.rewards)),
        differing=sorted(
            each[1] for each, count in counts.items() if each in records and _unlike(count, records[each])
        ),
    )


def _unlike(count: Mapping[str, float], groups: Iterable[RecordedGroup]) -> bool:
    fates = Counter(Fate(group.fate) for group in groups)
    made = count.get(metrics.GROUPS_GENERATED, 0.0)
    kept = count.get(metrics.GROUPS_SPREAD, count.get(metrics.GROUPS_MIXED, 0.0))
    counted = {
        metrics.GROUPS_TRAINED: fates[Fate.TRAINED],
        metrics.GROUPS_DROPPED: fates[Fate.SURPLUS],
        metrics.GROUPS_STALE: fates[Fate.STALE],
    }
    rejected = sum(fates[fate] for fate in _REJECTED)
    return rejected != round(made * (1 - kept)) or any(count.get(name, 0.0) != n for name, n in counted.items())


def read_records(store: ObjectStore, run_id: str, wanted: Iterable[Recorded]) -> dict[Recorded, list[RecordedGroup]]:
    """The groups of each of these steps that have a record. Raises StoreError."""
    import pyarrow.parquet as pq

    found: dict[Recorded, list[RecordedGroup]] = {}
    for attempt, step in wanted:
        try:
            data = store.get_bytes(groups_key(run_id, step, attempt))
        except ObjectNotFoundError:
            continue
        found[attempt, step] = [RecordedGroup.of_row(row) for row in pq.read_table(io.BytesIO(data)).to_pylist()]
    return found
