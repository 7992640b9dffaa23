"""Parquet and JSON-lines files with any columns, streamed by DuckDB into one table of prompts and answers.

What custom reward functions and subsets read besides is in the column `extra_info`. Rows may have different fields
there; parquet needs one type for all of them.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn

import duckdb
import pyarrow as pa

from dapo_core.errors import DataError, first_line

MEMORY: Final = "1GB"  # for DuckDB; beyond it tables go to its file, which is beside the output
BATCH_ROWS: Final = 4096
FILE_ROWS: Final = 1 << 40  # more than any file has
JSON_LINE_BYTES: Final = 64 << 20
_JSON_SUFFIXES: Final = (".jsonl", ".json", ".ndjson", ".jsonl.gz", ".ndjson.gz")
EXTRA_INFO: Final = "extra_info"
# Prompts of every shape are converted to this one; a text is one message of the user.
_MESSAGES: Final = "STRUCT(role VARCHAR, content VARCHAR)[]"
# A row with a prompt and an answer.
USABLE: Final = """len(messages) > 0 AND len(trim(answer, ' \t\n\r')) > 0
    AND len(list_filter(messages, lambda m: len(trim(m.content, ' \t\n\r')) > 0 AND len(m.role) > 0)) = len(messages)"""
_AS_USER: Final = "[{'role': 'user', 'content': prompt}]"


@dataclass(frozen=True)
class Columns:
    """Where prompt and answer are; a dot leads into a column's fields. The defaults are verl's chat schema."""

    prompt: str = "prompt"
    answer: str = "reward_model.ground_truth"


@dataclass(frozen=True)
class SourceFile:
    """A file, and its name in messages and reports."""

    name: str
    path: Path


def connect(folder: Path, threads: int) -> duckdb.DuckDBPyConnection:
    """A database in `folder`, which may be removed afterwards."""
    connection = duckdb.connect(
        folder / "prepare.duckdb",
        config={"memory_limit": MEMORY, "threads": threads, "temp_directory": str(folder / "spill")},
    )
    connection.execute("SET enable_progress_bar = false; SET preserve_insertion_order = true")
    return connection


def load(connection: duckdb.DuckDBPyConnection, table: str, files: Sequence[SourceFile], columns: Columns) -> None:
    """Create `table(position, messages, answer, copies, extra)`: each distinct pair once, its first position, its
    count, and its first `extra_info` as JSON.

    Positions count rows, file after file, with gaps between the files. Raises DataError naming the file that cannot be
    read or lacks a column.
    """
    connection.execute(
        f"CREATE TABLE {table} (position BIGINT, messages {_MESSAGES}, answer VARCHAR, copies BIGINT, extra JSON)"
    )
    for index, file in enumerate(files):
        try:
            _load_file(connection, table, index, file, columns)
        except duckdb.Error as error:
            raise DataError(
                f"{file.name} cannot be read ({first_line(error)}): use a complete parquet or JSON-lines file."
            ) from error


def batches(connection: duckdb.DuckDBPyConnection, query: str) -> Iterator[list[dict[str, Any]]]:
    """The rows of a query in batches; other queries may run meanwhile."""
    with connection.cursor() as cursor:
        for batch in cursor.sql(query).to_arrow_reader(BATCH_ROWS):
            yield batch.to_pylist()


def _load_file(
    connection: duckdb.DuckDBPyConnection, table: str, index: int, file: SourceFile, columns: Columns
) -> None:
    read = _from_json if file.path.name.endswith(_JSON_SUFFIXES) else _from_parquet
    pairs, messages = read(connection, file, columns)
    connection.execute(
        f"""INSERT INTO {table}
            SELECT {index * FILE_ROWS} + min(row), {messages}, answer, count(*),
                   to_json(arg_min(extra, row))
            FROM ({pairs}) GROUP BY prompt, answer"""
    )


def _from_parquet(connection: duckdb.DuckDBPyConnection, file: SourceFile, columns: Columns) -> tuple[str, str]:
    """A query for (row, prompt, answer, extra), and the prompt as messages."""
    rows = f"read_parquet({_text(str(file.path))}, file_row_number = true)"
    prompt, answer = (_expression(connection, rows, file, column) for column in (columns.prompt, columns.answer))
    [(_, kind, *_)] = connection.execute(f"DESCRIBE SELECT {prompt} FROM {rows}").fetchall()
    names = [name for name, *_ in connection.execute(f"DESCRIBE FROM {rows}").fetchall()]
    extra = _name(EXTRA_INFO) if EXTRA_INFO in names else "NULL"
    query = f"""SELECT file_row_number AS row, {prompt} AS prompt, CAST({answer} AS VARCHAR) AS answer, {extra} AS extra
                FROM {rows}"""
    if kind == "VARCHAR":
        return query, _AS_USER
    if kind.endswith("[]") and "role" in kind and "content" in kind:
        return query, "list_transform(prompt, lambda m: {'role': m.role, 'content': m.content})"
    raise DataError(
        f"{file.name}: column {columns.prompt} is {kind}: use a column of text, or of lists of {{role, content}}."
    )


def _from_json(connection: duckdb.DuckDBPyConnection, file: SourceFile, columns: Columns) -> tuple[str, str]:
    """As `_from_parquet`. Values stay JSON: type inference would turn the answer `12:30` into a time."""
    objects = f"read_ndjson_objects({_text(str(file.path))}, maximum_object_size = {JSON_LINE_BYTES})"
    prompt, answer = (_pointer(column) for column in (columns.prompt, columns.answer))
    for column, path in ((columns.prompt, prompt), (columns.answer, answer)):
        if connection.execute(f"SELECT 1 FROM {objects} WHERE json_exists(json, {path}) LIMIT 1").fetchone() is None:
            first = connection.execute(f"SELECT json_keys(json) FROM {objects} LIMIT 1").fetchone()
            _refuse_column(file, column, [] if first is None else list(first[0]))
    # Rows are numbered in the order of the file: DuckDB keeps it for a window without an order of its own.
    query = f"""SELECT row_number() OVER () - 1 AS row, json -> {prompt} AS prompt, json ->> {answer} AS answer,
                json -> '$.{EXTRA_INFO}' AS extra FROM {objects}"""
    return (
        query,
        f"""CASE json_type(prompt)
        WHEN 'VARCHAR' THEN [{{'role': 'user', 'content': prompt ->> '$'}}]
        WHEN 'ARRAY' THEN TRY_CAST(prompt AS {_MESSAGES}) END""",
    )


def _expression(connection: duckdb.DuckDBPyConnection, rows: str, file: SourceFile, column: str) -> str:
    """`column` in SQL; its own name may hold a dot. Raises DataError when the file has no such column."""
    for expression in (_name(column), ".".join(_name(part) for part in column.split("."))):
        try:
            connection.execute(f"DESCRIBE SELECT {expression} FROM {rows}")
        except duckdb.BinderException:
            continue
        return expression
    columns = [name for name, *_ in connection.execute(f"DESCRIBE FROM {rows}").fetchall()]
    return _refuse_column(file, column, [name for name in columns if name != "file_row_number"])


def _refuse_column(file: SourceFile, column: str, columns: Sequence[str]) -> NoReturn:
    raise DataError(
        f"{file.name} has no column {column} (it has {', '.join(columns) or 'none'}): "
        "set --prompt-column and --answer-column."
    )


def _pointer(column: str) -> str:
    return _text("$." + ".".join(_name(part) for part in column.split(".")))


def _name(identifier: str) -> str:
    return '"' + identifier.replace('"', '""') + '"'


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


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
