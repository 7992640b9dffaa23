"""The columns of the table of runs: which of the usual ones and in which order, and any metric or field of the job.

A metric or a field is named as `metric actor/entropy` or `field optimizer.learningRate`. What a spec hides from viewers
is hidden here, too.
"""

import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from dapo_core.db import MetadataReader, RunTableRow
from dapo_core.run.metrics import METRICS
from dapo_core.run.redaction import without_secrets
from dapo_dashboard.escaping import shown
from dapo_dashboard.reads.cached_reader import CachedReader
from dapo_dashboard.reads.spec_reads import with_new

Value = float | str | None
Extras = Mapping[str, Mapping[str, Value]]
"""Of each chosen column, its value in each run that has one."""
Fields = Mapping[str, Mapping[str, Value]]
"""Of each run, its fields by path."""

METRIC: Final = "metric "
FIELD: Final = "field "
MAX_EXTRAS: Final = 12
SECONDS: Final = 5.0
# No numbers: of an item of a list, such as an argument after `--password`, nobody knows whether it is a secret.
_PATH: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}(\.[A-Za-z_][A-Za-z0-9_]{0,62}){0,9}")
# Offered; any other can be typed.
USUAL_FIELDS: Final = (
    "model.path",
    "optimizer.learningRate",
    "algorithm.loss",
    "algorithm.clipLow",
    "algorithm.clipHigh",
    "algorithm.klCoefficient",
    "batch.prompts",
    "batch.responses",
    "batch.temperature",
    "data.seed",
    "schedule.steps",
    "topology.mode",
)
OFFERED: Final = (*(f"{METRIC}{name}" for name in METRICS), *(f"{FIELD}{path}" for path in USUAL_FIELDS))
HIGHEST, LOWEST = ", highest first", ", lowest first"


def understood(names: Sequence[str]) -> list[str]:
    """The names of columns that can be read, at most MAX_EXTRAS; what was typed may be anything."""
    return [
        name
        for name in dict.fromkeys(names)
        if (name.startswith(METRIC) and len(name) <= 512)
        or (name.startswith(FIELD) and _PATH.fullmatch(name.removeprefix(FIELD)))
    ][:MAX_EXTRAS]


def read_extras(reader: CachedReader, rows: Sequence[RunTableRow], names: Sequence[str]) -> Extras:
    """The values of the chosen columns; `rows` are those of all runs. Raises NothingReadError."""
    if not names:
        return {}
    metrics = [name.removeprefix(METRIC) for name in names if name.startswith(METRIC)]
    fields = [name.removeprefix(FIELD) for name in names if name.startswith(FIELD)]
    run_ids = [row.run_id for row in rows]
    points = reader.read(
        ("chosen metrics", tuple(metrics)), lambda db, _: db.last_values(run_ids, metrics), max_age=SECONDS
    ).value

    def load(db: MetadataReader, last: Fields | None) -> Fields:
        return with_new(last or {}, rows, lambda some: _read_fields(db, some, fields), {})

    specs = reader.read(("chosen fields", tuple(fields)), load, max_age=SECONDS).value if fields else {}
    found: dict[str, dict[str, Value]] = {name: {} for name in names}
    for run_id, of_run in points.items():
        for metric, point in of_run.items():
            found[f"{METRIC}{metric}"][run_id] = point.value
    for run_id, values in specs.items():
        for path, value in values.items():
            found[f"{FIELD}{path}"][run_id] = value
    return found


def _read_fields(db: MetadataReader, run_ids: Sequence[str], paths: Sequence[str]) -> Fields:
    texts = db.spec_fields(run_ids, paths)
    return {run_id: {path: field_value(path, text) for path, text in found.items()} for run_id, found in texts.items()}


def field_value(path: str, text: str) -> Value:
    """A field as it is shown: a number, or one line of text without secrets. A list or a mapping is none."""
    if text[:1] in ("{", "["):
        return None
    tree: Any = text
    for name in reversed(path.split(".")):
        tree = {name: tree}
    tree = without_secrets(tree)
    for name in path.split("."):
        tree = tree[name] if isinstance(tree, Mapping) else tree
    with suppress(TypeError, ValueError):
        number = float(tree)
        if math.isfinite(number):  # NaN differs from itself: the table would change whenever it is read
            return number
    return shown(str(tree), 120)


def extra_columns(extras: Extras, rows: Sequence[RunTableRow]) -> dict[str, list[Value]]:
    """The chosen columns for these rows. A column with any text is text."""
    made: dict[str, list[Value]] = {}
    for name, values in extras.items():
        column = [values.get(row.run_id) for row in rows]
        is_text = any(isinstance(value, str) for value in column)
        made[name] = [None if value is None else f"{value}" for value in column] if is_text else column
    return made


def orders_of(names: Sequence[str]) -> list[str]:
    """The orders that chosen columns add."""
    return [f"{name}{way}" for name in names for way in (HIGHEST, LOWEST)]


def ordered(rows: Sequence[RunTableRow], order: str, extras: Extras) -> list[RunTableRow]:
    """The rows by a chosen column, those without a value last; as they are if the order is none of those."""
    name = order.removesuffix(HIGHEST).removesuffix(LOWEST)
    if name == order or name not in extras:
        return list(rows)
    values = extras[name]
    known = [row for row in rows if values.get(row.run_id) is not None]
    by_value = sorted(known, key=lambda row: _key(values[row.run_id]), reverse=order.endswith(HIGHEST))
    return [*by_value, *(row for row in rows if values.get(row.run_id) is None)]


def _key(value: Value) -> tuple[bool, float, str]:
    return (True, 0.0, value) if isinstance(value, str) else (False, value or 0.0, "")
