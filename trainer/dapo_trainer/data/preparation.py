"""Prepares a dataset for training: each prompt once, with one answer, short enough, in one schema.

DuckDB groups the rows, streaming, and on disk when memory is short; decisions about a prompt are pure Python. The same
input and versions give the same bytes: prompts stay in the order of their first row, and the writer's settings are
fixed.
"""

import collections
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal

import duckdb
import pyarrow as pa
from pyarrow import parquet

from dapo_core.errors import DataError
from dapo_trainer.data.model_files import TokenCounter
from dapo_trainer.data.preparation_report import Lengths, PreparationReport
from dapo_trainer.data.prompts import HeldOut, Message, fingerprint, label_of, prompt_key, refuse_overlap, text_of
from dapo_trainer.data.source_tables import (
    INDEX,
    NO_EXTRA_INFO,
    USABLE,
    Columns,
    ExtraInfo,
    SourceFile,
    batches,
    connect,
    extra_info_of,
    load,
)
from dapo_trainer.rewards.rule_rewards import as_integer

OnOverlap = Literal["refuse", "drop", "keep"]
ROW_GROUP: Final = 8192
SCHEMA: Final = pa.schema(
    [
        ("data_source", pa.string()),
        ("prompt", pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))),
        ("ability", pa.string()),
        ("reward_model", pa.struct([("style", pa.string()), ("ground_truth", pa.string())])),
        ("extra_info", NO_EXTRA_INFO.type),
    ]
)


@dataclass(frozen=True)
class PreparationRequest:
    """What to prepare, from which files. `token_limit` and `count` come together; `template` contains `{prompt}`."""

    name: str
    sources: Sequence[SourceFile]
    out: Path
    columns: Columns = field(default_factory=Columns)
    integers: bool = False
    template: str | None = None
    token_limit: int | None = None
    count: TokenCounter | None = None
    validation: Sequence[SourceFile] = ()
    on_overlap: OnOverlap = "refuse"

    @property
    def report_file(self) -> Path:
        return self.out.with_suffix(".report.json")

    @property
    def conflicts_file(self) -> Path:
        return self.out.with_suffix(".conflicts.jsonl")


@dataclass(frozen=True)
class AnsweredPrompt:
    """A distinct prompt with one answer."""

    key: str
    label: str
    messages: Sequence[Message]
    extra: Mapping[str, Any]

    @property
    def integer(self) -> bool:
        return as_integer(self.label) is not None


Prompts = Iterator[AnsweredPrompt]


def prepare(request: PreparationRequest) -> PreparationReport:
    """Write the dataset, its report and its conflicts. Raises DataError, and then nothing is written."""
    request.out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".prepare-", dir=request.out.parent) as folder:
        with connect(Path(folder), len(os.sched_getaffinity(0))) as connection:
            preparation = _Preparation(request, connection, Path(folder))
            report = preparation.run()
        (preparation.folder / "report").write_text(json.dumps(report.to_json(), indent=2) + "\n")
        os.replace(preparation.folder / "conflicts", request.conflicts_file)
        os.replace(preparation.folder / "report", request.report_file)
        os.replace(preparation.folder / "data", request.out)
    return report


class _Preparation:
    """One call of `prepare`; its files stay in `folder` until all of it has succeeded."""

    def __init__(self, request: PreparationRequest, connection: duckdb.DuckDBPyConnection, folder: Path) -> None:
        self.request, self.connection, self.folder = request, connection, folder
        self.dropped = {"not_integer": 0, "in_validation": 0, "too_long": 0}
        self.kept = 0
        self.lengths = Lengths("characters" if request.count is None else "tokens")
        self.seen: dict[str, set[str]] = {"exact": set(), "normalized": set()}

    def run(self) -> PreparationReport:
        connection = self.connection
        connection.create_function("prompt_key", prompt_key, ["VARCHAR"], "VARCHAR")
        connection.create_function("label_of", label_of, ["VARCHAR"], "VARCHAR")
        load(connection, "pairs", self.request.sources, self.request.columns)
        connection.execute(_DISTINCT)
        held_out = [
            HeldOut.of(connection, f"held_out_{i}", file, self.request.columns)
            for i, file in enumerate(self.request.validation)
        ]
        conflicting = self._write_conflicts()
        self._write_data(held_out)
        overlaps = [one.overlap(self.seen) for one in held_out]
        if self.request.on_overlap == "refuse":
            refuse_overlap(overlaps)
        rows, unusable, prompts, fewest, most = _one(connection, _FIGURES)
        if not self.kept:
            raise DataError(f"{self.request.sources[0].name}: none of its {rows:,} rows is usable.")
        return PreparationReport(
            name=self.request.name,
            sources=[file.name for file in self.request.sources],
            rows=rows,
            unusable_rows=unusable,
            prompts=prompts,
            conflicting=conflicting,
            kept=self.kept,
            copies=(fewest, most),
            token_limit=self.request.token_limit,
            lengths=self.lengths,
            overlaps=overlaps,
            sha256=_digest(self.folder / "data"),
            **self.dropped,
        )

    def _write_conflicts(self) -> int:
        """A line for each prompt whose rows disagree: its text, and how many rows give each answer."""
        count = 0
        with (self.folder / "conflicts").open("w", encoding="utf-8") as out:
            for batch in batches(self.connection, _CONFLICTS):
                for row in batch:
                    answers: collections.Counter[str] = collections.Counter()
                    for one in row["answers"]:
                        answers[one["label"]] += one["copies"]
                    out.write(json.dumps({"prompt": row["text"], "answers": answers}, ensure_ascii=False) + "\n")
                    count += 1
        return count

    def _write_data(self, held_out: Sequence[HeldOut]) -> None:
        extra = extra_info_of(self.connection, _CANDIDATES.format(extra="extra"))
        schema = SCHEMA.set(len(SCHEMA) - 1, pa.field(SCHEMA.names[-1], extra.type))
        with parquet.ParquetWriter(
            self.folder / "data", schema, version="2.6", compression="zstd", compression_level=6
        ) as writer:
            rows: list[dict[str, Any]] = []
            for candidate in self._within_limit(self._not_held_out(held_out, self._with_answer(extra))):
                rows.append(self._row(candidate))
                if len(rows) == ROW_GROUP:
                    writer.write_table(pa.Table.from_pylist(rows, schema))
                    rows = []
            if rows:
                writer.write_table(pa.Table.from_pylist(rows, schema))

    def _with_answer(self, extra: ExtraInfo) -> Prompts:
        for batch in batches(self.connection, _CANDIDATES.format(extra=f"{extra.expression} AS extra")):
            for row in batch:
                candidate = AnsweredPrompt(row["key"], row["label"], row["messages"], row["extra"] or {})
                if self.request.integers and not candidate.integer:
                    self.dropped["not_integer"] += 1
                else:
                    yield candidate

    def _not_held_out(self, held_out: Sequence[HeldOut], candidates: Prompts) -> Prompts:
        for candidate in candidates:
            exact = fingerprint(text_of(candidate.messages))
            if any(exact in one.exact for one in held_out):
                self.seen["exact"].add(exact)
            if any(candidate.key in one.normalized for one in held_out):
                self.seen["normalized"].add(candidate.key)
                if self.request.on_overlap == "drop":
                    self.dropped["in_validation"] += 1
                    continue
            yield candidate

    def _within_limit(self, candidates: Prompts) -> Prompts:
        limit = self.request.token_limit
        for chunk in _chunks(map(self._instructed, candidates), ROW_GROUP):
            lengths = self._measure([candidate.messages for candidate in chunk])
            self.lengths.add(lengths)
            for candidate, length in zip(chunk, lengths, strict=True):
                if limit is not None and length > limit:
                    self.dropped["too_long"] += 1
                else:
                    yield candidate

    def _measure(self, conversations: Sequence[Sequence[Message]]) -> list[int]:
        if self.request.count is None:
            return [len(text_of(messages)) for messages in conversations]
        return self.request.count(conversations)

    def _instructed(self, candidate: AnsweredPrompt) -> AnsweredPrompt:
        """With the request's instruction around the last message."""
        if self.request.template is None:
            return candidate
        *before, last = candidate.messages
        content = self.request.template.replace("{prompt}", last["content"])
        return replace(candidate, messages=[*before, {"role": last["role"], "content": content}])

    def _row(self, candidate: AnsweredPrompt) -> dict[str, Any]:
        self.kept += 1
        return {
            "data_source": self.request.name,
            "prompt": candidate.messages,
            "ability": "MATH",
            "reward_model": {"style": "rule", "ground_truth": candidate.label},
            "extra_info": {**candidate.extra, INDEX: candidate.key},
        }


def _chunks(items: Prompts, size: int) -> Iterator[list[AnsweredPrompt]]:
    chunk: list[AnsweredPrompt] = []
    for item in items:
        chunk.append(item)
        if len(chunk) == size:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def _one(connection: duckdb.DuckDBPyConnection, query: str) -> tuple[int, ...]:
    row = connection.execute(query).fetchone()
    assert row is not None
    return tuple(int(value or 0) for value in row)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


_DISTINCT: Final = f"""
    CREATE TABLE readings AS
    SELECT *, prompt_key(text) AS key, label_of(answer) AS label
    FROM (SELECT *, array_to_string(list_transform(messages, lambda m: m.content), chr(10)) AS text FROM pairs
          WHERE {USABLE});
    CREATE TABLE prompts AS
    SELECT key, min(position) AS position, sum(copies) AS copies, count(DISTINCT label) > 1 AS conflicting
    FROM readings GROUP BY key"""
_FIGURES: Final = """
    SELECT (SELECT sum(copies) FROM pairs),
           (SELECT sum(copies) FROM pairs) - (SELECT coalesce(sum(copies), 0) FROM readings),
           count(*), min(copies), max(copies) FROM prompts"""
_CONFLICTS: Final = """
    SELECT arg_min(text, readings.position) AS text, list({'label': label, 'copies': readings.copies}
           ORDER BY readings.position) AS answers
    FROM readings JOIN prompts USING (key) WHERE conflicting GROUP BY key ORDER BY min(readings.position)"""
_CANDIDATES: Final = """
    SELECT key, label, messages, {extra} FROM prompts JOIN readings USING (key, position)
    WHERE NOT conflicting ORDER BY position"""
