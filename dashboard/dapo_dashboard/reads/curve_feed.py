"""The curves of a run as they grow: read once in buckets, then only the new steps."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Final

from dapo_core.db import AttemptRow, CurvePoint, MetadataReader, repeated_steps
from dapo_core.run.metrics import STEP_SECONDS, TOKENS_PROCESSED
from dapo_dashboard.charts.buckets import BUCKETS, MAX_BUCKETS, Curve, appended, bucket_of
from dapo_dashboard.charts.view import StepClock
from dapo_dashboard.reads.cached_reader import CachedReader, Reading

# A step's metrics may arrive in more than one batch: the last steps are read again.
REREAD_STEPS: Final = 3
# Enough dots for a chart of 400 pixels, and each is a look-up for every curve.
MAX_OVERWRITTEN: Final = 100
_SERIALS = count()


@dataclass(frozen=True)
class Overwritten:
    """By metric, what earlier attempts recorded `at` some steps (each with its attempt) that a newer one has repeated.
    `reached` is how far the newest was when it was read, until all of these steps are complete."""

    at: tuple[tuple[int, int], ...] = ()
    reached: int = 0
    curves: dict[str, Curve] = field(default_factory=dict)


_NOTHING_OVERWRITTEN: Final = Overwritten()


@dataclass(frozen=True)
class RunCurves:
    """Curves by metric. `attempt` is the latest when they were read; a later one may have rewritten steps. `serial`
    identifies this version of the curves."""

    attempt: int
    curves: dict[str, Curve]
    overwritten: Overwritten = _NOTHING_OVERWRITTEN
    serial: int = field(default_factory=_SERIALS.__next__, compare=False)

    @property
    def size(self) -> int:
        return max((len(curve) for curve in self.curves.values()), default=0)

    @property
    def step_to(self) -> int:
        """The last step of any curve."""
        return max((curve[-1].step_to for curve in self.curves.values() if curve), default=0)

    @property
    def whole_to(self) -> int:
        """The end of the last bucket of several steps; -1 if each is of one step."""
        wide = (bucket.step_to for curve in self.curves.values() for bucket in curve if bucket.count > 1)
        return max(wide, default=-1)


def read_curves(
    reader: CachedReader, run_id: str, names: Sequence[str], window: tuple[int, int] | None = None
) -> Reading[RunCurves]:
    """The curves, shared by all viewers. Raises NothingReadError."""

    def load(db: MetadataReader, last: RunCurves | None) -> RunCurves:
        attempts = db.attempts(run_id)
        newest = max(attempts, key=lambda row: row.attempt, default=None)
        attempt = 0 if newest is None else newest.attempt
        if last is not None and last.attempt == attempt and last.curves and window is None:
            reached = _reached(newest)
            # A bucket of several steps cannot be split: while the newest attempt is inside one, all is read again.
            if last.size <= MAX_BUCKETS and not reached < last.whole_to:
                after = min(last.step_to, reached) - REREAD_STEPS
                return with_overwritten(db, _more(db, run_id, names, last, after), attempts)
        read = _all(db, run_id, names, window, attempt)
        whole = with_overwritten(db, read if last is None else replace(read, overwritten=last.overwritten), attempts)
        return last if last is not None and whole == last else whole

    def with_overwritten(db: MetadataReader, read: RunCurves, attempts: Sequence[AttemptRow]) -> RunCurves:
        found = _overwritten(db, run_id, names, window, attempts, read.overwritten)
        return read if found is read.overwritten else RunCurves(read.attempt, read.curves, found)

    return reader.read(("curves", run_id, tuple(names), window), load)


def _all(
    db: MetadataReader, run_id: str, names: Sequence[str], window: tuple[int, int] | None, attempt: int
) -> RunCurves:
    start, end = window or (None, None)
    read = db.buckets([run_id], names, buckets=BUCKETS, from_step=start, to_step=end)
    return RunCurves(attempt, {name: read.get((run_id, name), []) for name in names})


def _overwritten(
    db: MetadataReader,
    run_id: str,
    names: Sequence[str],
    window: tuple[int, int] | None,
    attempts: Sequence[AttemptRow],
    last: Overwritten,
) -> Overwritten:
    """Read again only while the newest attempt repeats steps."""
    start, end = window or (None, None)
    at = tuple(repeated_steps(attempts, MAX_OVERWRITTEN, start, end))
    if not at:
        return _NOTHING_OVERWRITTEN
    reached = min(_reached(max(attempts, key=lambda row: row.attempt)), at[-1][0] + REREAD_STEPS)
    if (last.at, last.reached) == (at, reached):
        return last
    found = db.overwritten(run_id, names, at)
    return Overwritten(at, reached, {name: [bucket_of(point) for point in points] for name, points in found.items()})


def _reached(attempt: AttemptRow | None) -> int:
    """The last step of the newest attempt: those after it are an earlier attempt's, and will be replaced."""
    if attempt is None:
        return 0
    return attempt.step_to if attempt.step_to is not None else attempt.step_from or 0


def _more(db: MetadataReader, run_id: str, names: Sequence[str], last: RunCurves, after: int) -> RunCurves:
    """Reads the steps after `after`, but for those of buckets of several steps."""
    new = db.since(run_id, names, max(last.whole_to, after))
    if all(_is_end(last.curves.get(name, ()), new.get(name, ())) for name in names):
        return last
    curves: dict[str, Curve] = {name: appended(last.curves.get(name, []), new.get(name, ())) for name in names}
    return RunCurves(last.attempt, curves, last.overwritten)


def _is_end(curve: Curve, points: Sequence[CurvePoint]) -> bool:
    """Whether the curve already ends with these points."""
    return list(curve[len(curve) - len(points) :]) == [bucket_of(point) for point in points]


def read_clock(reader: CachedReader, run_id: str) -> StepClock:
    """When each step finished, and the tokens trained on by then. Raises NothingReadError."""

    def load(db: MetadataReader, last: StepClock | None) -> StepClock:
        moments = db.moments(run_id, STEP_SECONDS, BUCKETS)
        tokens = db.buckets([run_id], [TOKENS_PROCESSED], buckets=BUCKETS).get((run_id, TOKENS_PROCESSED), [])
        clock = clock_of(moments, tokens)
        return last if clock == last else clock

    return reader.read(("clock", run_id), load, max_age=5.0).value


def clock_of(moments: Sequence[tuple[int, float]], tokens: Curve) -> StepClock:
    """From (step, Unix seconds) and the tokens of each step. Times never decrease: a repeated step counts at its last
    time, and the steps after it no earlier."""
    steps, times, totals = [], [], []
    latest = total = 0.0
    spent = iter(tokens)
    bucket = next(spent, None)
    for step, ts in moments:
        while bucket is not None and bucket.step_to <= step:
            total += (bucket.mean or 0.0) * bucket.count
            bucket = next(spent, None)
        latest = max(latest, ts)
        steps.append(float(step))
        times.append(latest)
        totals.append(total)
    return StepClock(steps, times, totals if total > 0 else [])
