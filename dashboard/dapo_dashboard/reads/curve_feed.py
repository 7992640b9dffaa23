"""The curves of a run as they grow: read once in buckets, then only what is new."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count

from dapo_core.db import CurvePoint
from dapo_core.db.pages import PageReader
from dapo_core.run.metrics import TOKENS_PROCESSED
from dapo_dashboard.charts.curves import BUCKETS, MAX_BUCKETS, Curve, appended, bucket_of
from dapo_dashboard.clock import Clock
from dapo_dashboard.reads.source import Reading, Source

# A step's metrics may arrive in more than one batch: the last steps are asked for again.
AGAIN = 3
_SERIALS = count()


@dataclass(frozen=True)
class RunCurves:
    """Curves by metric. `attempt` is the newest when they were read; a later one may have rewritten steps. `serial` is
    another whenever the curves are."""

    attempt: int
    curves: dict[str, Curve]
    serial: int = field(default_factory=_SERIALS.__next__, compare=False)

    @property
    def size(self) -> int:
        return max((len(curve) for curve in self.curves.values()), default=0)


def read_curves(
    source: Source, run_id: str, names: Sequence[str], window: tuple[int, int] | None = None
) -> Reading[RunCurves]:
    """The curves, shared by all who look at them. Raises NothingYetError."""

    def load(reader: PageReader, last: RunCurves | None) -> RunCurves:
        attempt = max((row.attempt for row in reader.attempts(run_id)), default=0)
        if last is None or last.attempt != attempt or last.size > MAX_BUCKETS or not last.curves or window is not None:
            whole = _all(reader, run_id, names, window, attempt)
            return last if whole == last else whole
        return _more(reader, run_id, names, last)

    return source.read(("curves", run_id, tuple(names), window), load)


def _all(
    reader: PageReader, run_id: str, names: Sequence[str], window: tuple[int, int] | None, attempt: int
) -> RunCurves:
    start, end = window or (None, None)
    found = reader.buckets([run_id], names, buckets=BUCKETS, from_step=start, to_step=end)
    return RunCurves(attempt, {name: found.get((run_id, name), []) for name in names})


def _more(reader: PageReader, run_id: str, names: Sequence[str], last: RunCurves) -> RunCurves:
    """Steps after what stands in buckets of several steps, which can not be taken apart, and before what may change."""
    newest = max((curve[-1].step_to for curve in last.curves.values() if curve), default=0)
    whole = max((bucket.step_to for c in last.curves.values() for bucket in c if bucket.count > 1), default=-1)
    new = reader.since(run_id, names, max(whole, newest - AGAIN))
    if all(_stands(last.curves.get(name, ()), new.get(name, ())) for name in names):
        return last
    return RunCurves(last.attempt, {name: appended(last.curves.get(name, []), new.get(name, ())) for name in names})


def _stands(curve: Curve, points: Sequence[CurvePoint]) -> bool:
    """Whether these points are the end of the curve as it is."""
    return list(curve[len(curve) - len(points) :]) == [bucket_of(point) for point in points]


def read_clock(source: Source, run_id: str) -> Clock:
    """When each step was finished, and the tokens trained on by then. Raises NothingYetError."""

    def load(reader: PageReader, last: Clock | None) -> Clock:
        moments = reader.moments(run_id, BUCKETS)
        tokens = reader.buckets([run_id], [TOKENS_PROCESSED], buckets=BUCKETS).get((run_id, TOKENS_PROCESSED), [])
        clock = clock_of(moments, tokens)
        return last if clock == last else clock

    return source.read(("clock", run_id), load, max_age=5.0).value


def clock_of(moments: Sequence[tuple[int, float]], tokens: Curve) -> Clock:
    """From (step, Unix seconds) and the tokens of each step. Times never fall: a step done again counts when it was
    done last, and the steps after it later still."""
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
    return Clock(steps, times, totals if total > 0 else [])
