"""Which subset each row of a file belongs to: the value of a column, or of a field within one."""

from pathlib import Path
from typing import Any

from dapo_core.errors import DataError


def subsets_of(path: Path, column: str, set_name: str) -> list[str]:
    """The subset of every row, in the file's order; `column` may be dotted (`extra_info.level`).

    Raises DataError when the file has no such column, naming those that it has.
    """
    from pyarrow import json, parquet

    table = json.read_json(path) if path.suffix in {".json", ".jsonl"} else parquet.read_table(path)
    first, *fields = column.split(".")
    if first not in table.column_names:
        known = ", ".join(table.column_names)
        raise DataError(f"--subset {column}: {path} of the set {set_name} has no such column; it has {known}.")
    return [_value(value, fields) for value in table.column(first).to_pylist()]


def _value(value: Any, fields: list[str]) -> str:
    for field in fields:
        value = value.get(field) if isinstance(value, dict) else None
    return "(none)" if value is None else str(value)
