"""The query behind the validation results of many runs."""

from collections.abc import Sequence

from sqlalchemy import Connection, select

from dapo_core.db import schema
from dapo_core.db.points import points_of_runs
from dapo_core.run.metrics import validation_of
from dapo_core.run.validations import ValidationResult, results_of

names = schema.metric_names


def validations_of(connection: Connection, run_ids: Sequence[str]) -> dict[str, list[ValidationResult]]:
    """The results of validation, by run; of a step that was repeated, the newest attempt's."""
    known = connection.execute(select(names.c.metric_id, names.c.name))
    means = {metric_id: name for metric_id, name in known if (of := validation_of(name)) and of.statistic == "mean"}
    stored = points_of_runs(connection, run_ids)
    points = stored.table()
    query = (
        select(points.c.run_id, points.c.metric_id, points.c.step, points.c.value)
        .where(points.c.run_id.in_(run_ids), points.c.metric_id.in_(means))
        .order_by(points.c.run_id, points.c.metric_id, points.c.step, points.c.attempt)
    )
    curves: dict[str, dict[str, dict[int, float | None]]] = {}
    for run_id, metric_id, step, value in connection.execute(query, stored.parameters):
        curves.setdefault(run_id, {}).setdefault(means[metric_id], {})[step] = value
    results = {
        run_id: results_of({name: list(curve.items()) for name, curve in of_run.items()})
        for run_id, of_run in curves.items()
    }
    return {run_id: found for run_id, found in results.items() if found}
