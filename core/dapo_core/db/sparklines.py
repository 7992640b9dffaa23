"""One metric of many runs as small pictures, for the dashboard's table of runs."""

from collections.abc import Sequence
from math import ceil

from sqlalchemy import Connection, and_, bindparam, func, select

from dapo_core.db import schema
from dapo_core.db.curves import bucketed, metric_ids
from dapo_core.db.rollups import FINE

Sparklines = dict[str, list[float | None]]

points, latest, attempts = schema.points, schema.latest, schema.attempts


def sparklines_of(connection: Connection, run_ids: Sequence[str], metric: str, most: int) -> Sparklines:
    """The metric of each run over its own steps: means of at most `most` buckets, None where none is finite."""
    ids = metric_ids(connection, [metric])
    mine = and_(latest.c.run_id.in_(run_ids), latest.c.metric_id.in_(ids))
    alike: dict[int, list[str]] = {}
    for run_id, last in connection.execute(select(latest.c.run_id, latest.c.step).where(mine)):
        # Widths that are powers of two: runs of alike lengths are one query.
        alike.setdefault(1 << (max(1, ceil((last + 1) / most)) - 1).bit_length(), []).append(run_id)
    found: Sparklines = {}
    for width, group in alike.items():
        repeated = _repeated(connection, group)
        plain = [run_id for run_id in group if run_id not in repeated and width < FINE]
        found |= _means(connection, plain, next(iter(ids)), width)
        others = [run_id for run_id in group if run_id not in found]
        for (run_id, _), curve in bucketed(connection, others, ids, width, {}, bool(repeated)).items():
            found[run_id] = [bucket.mean for bucket in curve]
    return found


def _repeated(connection: Connection, run_ids: Sequence[str]) -> set[str]:
    """Runs of which an attempt may have done again what one before it did."""
    query = select(attempts.c.run_id).where(attempts.c.run_id.in_(run_ids)).group_by(attempts.c.run_id)
    return set(connection.execute(query.having(func.count() > 1)).scalars())


def _means(connection: Connection, run_ids: Sequence[str], metric_id: int, width: int) -> Sparklines:
    """Of short runs, the most by far: their means and nothing else, which is a fifth of the work of whole buckets."""
    slot = (points.c.step // bindparam(None, width, literal_execute=True)).label("slot")
    mine = and_(points.c.run_id.in_(run_ids), points.c.metric_id == metric_id)
    query = select(points.c.run_id, func.avg(points.c.value)).where(mine).group_by(points.c.run_id, slot)
    found: Sparklines = {}
    for run_id, mean in connection.execute(query.order_by(points.c.run_id, slot)):
        found.setdefault(run_id, []).append(mean)
    return found
