"""What only the dashboard's pages ask: when the steps of a run were, and how large its job is."""

from collections.abc import Sequence
from typing import Final

from sqlalchemy import and_, func, literal, select

from dapo_core.db import schema
from dapo_core.db.curves import metric_ids
from dapo_core.db.queries import MetadataReader
from dapo_core.jobspec.layout import Layout
from dapo_core.run.metrics import STEP_SECONDS

_NUMBERS: Final = tuple((role, name) for role in ("trainer", "rollout") for name in ("replicas", "gpusPerPod"))


def open_page_reader(url: str) -> "PageReader":
    """A reader for pages of the database at `url`. Raises StoreError when there is none."""
    return PageReader(url)


class PageReader(MetadataReader):
    """The reads of the store, and those that nobody but a page needs."""

    def moments(self, run_id: str, most: int) -> list[tuple[int, float]]:
        """(step, Unix seconds) of at most `most` + 1 steps of the run, each the last of its bucket."""
        points = schema.points
        with self._connection() as connection:
            # Every step has this metric, and once.
            ids = list(metric_ids(connection, [STEP_SECONDS]))
            mine = (points.c.run_id == run_id, points.c.metric_id.in_(ids))
            last = connection.execute(select(func.max(points.c.step)).where(*mine)).scalar()
            width = max(1, -(-((last or 0) + 1) // most))
            ends = select(literal(width - 1).label("end")).cte("ends", recursive=True)
            ends = ends.union_all(select(ends.c.end + width).where(ends.c.end < (last or 0)))
            # One look-up a bucket: the points between are as many as the run is long.
            inside = and_(points.c.step <= ends.c.end, points.c.step > ends.c.end - width)
            step = select(func.max(points.c.step)).where(*mine, inside).scalar_subquery().label("step")
            found = select(step).select_from(ends).subquery("found")
            ts = select(points.c.ts).where(*mine, points.c.step == found.c.step)
            newest = ts.order_by(points.c.attempt.desc()).limit(1).scalar_subquery()
            rows = connection.execute(select(found.c.step, newest).where(found.c.step.is_not(None)).order_by("step"))
            return [(step, ts) for step, ts in rows]

    def accelerators(self, run_ids: Sequence[str]) -> dict[str, int]:
        """How many accelerators the pods of each run ask for together, out of its spec where that lies."""
        topology = schema.runs.c.spec["spec"]["topology"]
        numbers = [topology[role][name].as_string() for role, name in _NUMBERS]
        query = select(schema.runs.c.run_id, topology["mode"].as_string(), *numbers)
        with self._connection() as connection:
            rows = connection.execute(query.where(schema.runs.c.run_id.in_(run_ids)))
            return {run_id: _gpus(mode, counts) for run_id, mode, *counts in rows}


def _gpus(mode: str | None, counts: Sequence[str | None]) -> int:
    return Layout(mode == "Separated", *(int(count or 0) for count in counts)).gpus
