"""What trainers noted on their own disks: the oracle for what a database has to hold."""

from collections.abc import Iterable
from pathlib import Path

from dapo_trainer.spool import SpoolReader

# Metric, step, attempt, value, flag.
Point = tuple[str, int, int, float | None, str | None]
STORED = (
    "select name, step, attempt, value, flag from curve_points join metric_names using (metric_id)"
    " join run_keys using (run_key)"
)


def spooled_points(spools: Iterable[Path]) -> list[Point]:
    """Every point in these spools; the database has to hold it once."""
    return [
        (name, record.step or 0, record.attempt, value, record.body.get("flags", {}).get(name))
        for spool in spools
        for record in SpoolReader(spool, 0).read(1_000_000)
        if record.kind == "step"
        for name, value in record.body["values"].items()
    ]
