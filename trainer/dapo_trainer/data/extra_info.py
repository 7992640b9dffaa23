"""The column `extra_info` of prepared data: what custom reward functions and subsets read besides prompt and answer.

Rows may have different fields; parquet needs one type for all of them.
"""

import json
from dataclasses import dataclass
from typing import Any, Final

import duckdb
import pyarrow as pa

from dapo_core.errors import DataError

INDEX: Final = "index"  # ours: a fingerprint of the prompt


@dataclass(frozen=True)
class ExtraInfo:
    """`expression`: SQL for a row's fields as a struct, from its column `extra`. `type`: theirs, with `index`."""

    expression: str
    type: pa.StructType


NO_EXTRA_INFO: Final = ExtraInfo("NULL", pa.struct([(INDEX, pa.string())]))


def extra_info_of(connection: duckdb.DuckDBPyConnection, rows: str) -> ExtraInfo:
    """What `rows`, a query with a column `extra` of JSON, needs. A field of several types is kept as JSON text.

    Raises DataError when a row's value is no object, or when one has two fields that differ in case only.
    """
    other = connection.execute(
        f"SELECT extra FROM ({rows}) WHERE json_type(extra) NOT IN ('OBJECT', 'NULL') LIMIT 1"
    ).fetchone()
    if other is not None:
        raise DataError(
            f"column extra_info: {other[0][:40]} is not an object: use an object with named fields, or rename the "
            "column."
        )
    [(found,)] = connection.execute(
        f"SELECT json_group_structure(extra) FROM ({rows}) WHERE json_type(extra) = 'OBJECT'"
    ).fetchall()
    structure = _settled(json.loads(found)) if found else {}
    if not isinstance(structure, dict) or not (structure := {k: v for k, v in structure.items() if k != INDEX}):
        return NO_EXTRA_INFO
    written = json.dumps(structure, ensure_ascii=False).replace("'", "''")
    expression = f"json_transform(extra, '{written}')"
    try:
        schema = connection.sql(f"SELECT {expression} AS fields FROM ({rows})").to_arrow_reader(1).schema
    except duckdb.Error as error:
        raise DataError(
            f"column extra_info: its fields {', '.join(structure)} cannot be the columns of one file: give each a name "
            "that differs from the others not in case only."
        ) from error
    return ExtraInfo(expression, pa.struct([(INDEX, pa.string()), *schema.field("fields").type]))


def _settled(structure: Any) -> Any:
    """DuckDB's description of JSON, in one order, with one type for whole numbers."""
    if isinstance(structure, dict):
        return {name: _settled(structure[name]) for name in sorted(structure)}
    if isinstance(structure, list):
        return [_settled(item) for item in structure]
    return {"UBIGINT": "BIGINT", "NULL": "VARCHAR"}.get(structure, structure)
