"""What is read of one run in the metadata store: only what is new since the last time, and its guards judged on all of
it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from dapo_core.jobspec.guard_fields import Guard
from dapo_core.run.guards import GuardJudge, metrics_of

if TYPE_CHECKING:
    from dapo_core.db import CurvePart, MetadataReader, RunMark

# Points of one query, and queries of one read: whatever a tenant has stored, one run takes about a second of it.
PAGE: Final = 20_000
PAGES: Final = 10


@dataclass
class JudgedCurves:
    """The guards of a run at the end of what was read of its curves. `complete`: that was all."""

    guards: Sequence[Guard]
    attempt: int
    step_from: int | None
    judge: GuardJudge = field(init=False)
    complete: bool = False

    def __post_init__(self) -> None:
        self.judge = GuardJudge(self.guards)

    def is_continued_by(self, guards: Sequence[Guard], mark: "RunMark") -> bool:
        """Whether to read on from here. A new attempt repeats steps, another resumed step discards others, and a store
        that was restored lacks some."""
        newest = self.judge.newest
        last = mark.step_to if mark.step_to is not None else mark.step_from
        return (
            self.guards == guards
            and (self.attempt, self.step_from) == (mark.attempt, mark.step_from)
            and (newest is None or last is None or newest <= last)
        )


def read_curves(
    reader: "MetadataReader",
    run_id: str,
    guards: Sequence[Guard],
    mark: "RunMark",
    known: JudgedCurves | None,
    next_part: "CurvePart | None" = None,
) -> JudgedCurves:
    """The curves that the guards need, read on from `known` where possible: `next_part`, if that was read already.
    Raises StoreError."""
    curves = known
    if curves is None or not curves.is_continued_by(guards, mark):
        curves, next_part = JudgedCurves(guards, mark.attempt, mark.step_from), None
    metrics, curves.complete = sorted(metrics_of(guards)), not guards
    for _ in range(PAGES if guards else 0):
        newest = curves.judge.newest
        # The newest step again: it may have got more metrics.
        part = next_part or reader.curve_part(run_id, metrics, mark, newest, PAGE)
        curves.judge.add({name: part.history[name] for name in metrics if name in part.history})
        # A page of one step's points has no next one.
        curves.complete = not part.more or curves.judge.newest == newest
        if curves.complete:
            break
    return curves


def next_parts(
    reader: "MetadataReader", runs: Mapping[str, tuple[Sequence[Guard], "RunMark", JudgedCurves | None]]
) -> dict[str, "CurvePart"]:
    """What follows the curves of those runs that go on from what was read: one query instead of several per run.
    Raises StoreError."""
    known: dict[str, tuple[RunMark, int]] = {}
    for run_id, (guards, mark, curves) in runs.items():
        if curves is not None and curves.judge.newest is not None and curves.is_continued_by(guards, mark):
            known[run_id] = (mark, curves.judge.newest)
    metrics = sorted({name for run_id in known for name in metrics_of(runs[run_id][0])})
    return reader.next_parts(known, metrics, PAGE) if len(known) > 1 else {}
