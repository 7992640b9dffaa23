"""Where the points of curves are: in `curve_points`, by the number of their run.

What versions before revision 0005 wrote is in `points`, by the run's name, until `convert` moves it; trainers of those
versions still write there. So a run may have points in either table, or in both.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from sqlalchemy import Connection, FromClause, Integer, Select, String, bindparam, select, union_all

from dapo_core.db import dialects, schema

Place = Literal["one run", "runs", "names", "both"]
"""`one run`: `curve_points` of a single run. `runs`: of several. `names`: `points`. `both`: either table."""

COLUMNS: Final = ("run_id", "metric_id", "step", "attempt", "ts", "value", "flag")
_NUMBERED, _NAMED, _KEYS = schema.curve_points, schema.points, schema.run_keys


def first_named(run_id: Any) -> Any:
    """Not null if the run has points by name. In the order of the key: otherwise the server may read all of the table
    to find that there is none."""
    of_run = select(_NAMED.c.metric_id).where(_NAMED.c.run_id == run_id)
    return of_run.order_by(*_NAMED.primary_key.columns).limit(1).scalar_subquery()


_RUN: Final = bindparam("run", type_=String)
_KEY_OF_RUN: Final = select(_KEYS.c.run_key).where(_KEYS.c.run_id == _RUN).scalar_subquery()
_ONE: Final = select(_KEY_OF_RUN, first_named(_RUN).is_not(None))
_NAMES: Final = schema.metric_names
# Which metrics there are and where the points are, in one question: a second one would cost as much as a short curve.
_CURVES: Final = select(_NAMES.c.metric_id, _NAMES.c.name, _KEY_OF_RUN, first_named(_RUN).is_not(None)).where(
    _NAMES.c.name.in_(bindparam("metrics", expanding=True))
)
# A run that has points has attempts: its first point adds one.
_SOME: Final = (
    select(schema.attempts.c.run_id)
    .where(schema.attempts.c.run_id.in_(bindparam("runs", expanding=True)))
    .where(first_named(schema.attempts.c.run_id).is_not(None))
    .limit(1)
)
_NUMBERED_RUNS: Final = select(_KEYS.c.run_key).where(_KEYS.c.run_id.in_(bindparam("runs", expanding=True))).limit(1)


@dataclass(frozen=True)
class Points:
    """The points of some runs, as a table with the columns `COLUMNS`. Queries of it are executed with `parameters`."""

    place: Place
    parameters: dict[str, Any]

    @property
    def is_double(self) -> bool:
        """Whether a point may be there twice, once in each table."""
        return self.place == "both"

    def table(self, name: str = "stored") -> FromClause:
        """The points, under this name in a query."""
        return table_at(self.place, name)


def table_at(place: Place, name: str = "stored") -> FromClause:
    """The points at `place`, with the columns `COLUMNS`; of `one run` with the parameters of `points_of`."""
    if place == "names":
        return _NAMED.alias(name)
    if place == "both":
        return union_all(select(*(_NAMED.c[column] for column in COLUMNS)), _numbered()).subquery(name)
    if place == "runs":
        return _numbered().subquery(name)
    # Without a join, which parallel workers cannot share where one side is a single row.
    run_id = bindparam("point_run_id", type_=String).label("run_id")
    columns = (_NUMBERED.c[column] for column in COLUMNS[1:])
    of_run = _NUMBERED.c.run_key == bindparam("point_run_key", type_=Integer)
    return select(run_id, *columns).where(of_run).subquery(name)


def _numbered() -> Select[Any]:
    joined = _KEYS.join(_NUMBERED, _NUMBERED.c.run_key == _KEYS.c.run_key)
    return select(_KEYS.c.run_id, *(_NUMBERED.c[column] for column in COLUMNS[1:])).select_from(joined)


def points_of(connection: Connection, run_id: str) -> Points:
    """The points of one run."""
    run_key, is_named = connection.execute(_ONE, {"run": run_id}).one()
    return _of_one(run_id, run_key, is_named)


def curves_of_run(connection: Connection, run_id: str, metrics: Iterable[str]) -> tuple[dict[int, str], Points]:
    """Names of those `metrics` that any run has, by their ID, and the points of one run."""
    rows = connection.execute(_CURVES, {"run": run_id, "metrics": sorted(set(metrics))}).all()
    stored = _of_one(run_id, *rows[0][2:]) if rows else _of_one(run_id, None, False)
    return {metric_id: name for metric_id, name, *_ in rows}, stored


def _of_one(run_id: str, run_key: int | None, is_named: bool) -> Points:
    if is_named:
        return Points("names" if run_key is None else "both", {})
    return Points("one run", {"point_run_id": run_id, "point_run_key": run_key})


def points_of_runs(connection: Connection, run_ids: Sequence[str]) -> Points:
    """The points of several runs."""
    if len(run_ids) == 1:
        return points_of(connection, run_ids[0])
    if connection.execute(_SOME, {"runs": run_ids}).first() is None:
        return Points("runs", {})
    is_numbered = connection.execute(_NUMBERED_RUNS, {"runs": run_ids}).first() is not None
    return Points("both" if is_numbered else "names", {})


def numbered(connection: Connection, run_id: str) -> tuple[int, Points]:
    """The run's number, a new one if it has none, and its points with those that are written by that number."""
    run_key, is_named = connection.execute(_ONE, {"run": run_id}).one()
    if run_key is None:
        added = dialects.insert(connection, _KEYS).values(run_id=run_id).on_conflict_do_nothing()
        connection.execute(added)
        run_key = connection.execute(select(_KEYS.c.run_key).where(_KEYS.c.run_id == run_id)).scalar_one()
    return run_key, _of_one(run_id, run_key, is_named)
