"""A job's prompt files: read, checked row by row, and written in the schema that verl reads.

Where files have weights, how often each row occurs in an epoch follows from them.
"""

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

from dapo_core.errors import DataError, first_line
from dapo_trainer.data.model_files import TokenCounter
from dapo_trainer.rewards.rule_rewards import balanced
from dapo_trainer.rewards.statement import TAIL_CHARACTERS

SHOWN_PROBLEMS = 5
# Brackets in a line of JSON above which its nesting is looked at.
MAX_NESTING = 500
Row = dict[str, Any]


@dataclass(frozen=True)
class PromptFile:
    """One file of a job: the field that names it, the name of its set in metrics, and its local path."""

    field: str
    set_name: str
    path: Path


def parquet_rows(path: Path) -> int:
    """How many rows a file that `write` wrote has, by its footer."""
    from pyarrow import parquet

    return int(parquet.read_metadata(path).num_rows)


def read(file: PromptFile) -> list[Row]:
    """The file's rows as they are. Raises DataError when it cannot be read or lacks a column."""
    try:
        table = _table(file.path)
    except Exception as error:  # pyarrow raises OSError, ArrowInvalid and UnicodeDecodeError alike
        raise _unreadable(file, error) from error
    missing = [column for column in ("prompt", "reward_model") if column not in table.column_names]
    if missing:
        raise DataError(
            f"{file.field}: {file.path} has no column {' and '.join(missing)} "
            f"(it has {', '.join(table.column_names)}): use verl's chat schema, "
            "a `prompt` of messages and `reward_model.ground_truth`."
        )
    if table.num_rows == 0:
        raise DataError(f"{file.field}: {file.path} has no rows.")
    read = [name for name in ("prompt", "reward_model", "extra_info") if name in table.column_names]
    try:
        rows: list[Row] = table.select(read).to_pylist()
    except UnicodeDecodeError as error:  # pyarrow reads texts without looking at them
        raise _unreadable(file, error) from error
    return rows


def _table(path: Path) -> Any:
    if path.suffix in {".jsonl", ".json"}:
        from pyarrow import json as reader

        _refuse_nesting(path)
        return reader.read_json(path)
    from pyarrow import parquet

    return parquet.read_table(path)


def _refuse_nesting(path: Path) -> None:
    """Raises ValueError for a line of JSON that is so deeply nested that pyarrow would end the process."""
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if line.count(b"[") + line.count(b"{") > MAX_NESTING:
                try:
                    json.loads(line)
                except RecursionError:
                    raise ValueError(f"line {number} is nested too deeply") from None
                except ValueError:  # which pyarrow describes
                    continue


def _unreadable(file: PromptFile, error: Exception) -> DataError:
    return DataError(
        f"{file.field}: {file.path} cannot be read ({first_line(error)}): use a complete parquet or JSON-lines file."
    )


def _messages(prompt: Any) -> list[dict[str, str]] | None:
    """The prompt as chat messages, or None when it is not a prompt or empty."""
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    if not isinstance(messages, list) or not messages or not all(isinstance(m, dict) for m in messages):
        return None
    filled = all(isinstance(m.get("content"), str) and m["content"].strip() for m in messages)
    return messages if filled and all(isinstance(m.get("role"), str) and m["role"] for m in messages) else None


def _problem(row: Row, reward_type: str) -> str | None:
    if _messages(row["prompt"]) is None:
        return "column prompt: it is empty or not a list of {role, content} messages"
    holder = row["reward_model"]
    label = holder.get("ground_truth") if isinstance(holder, dict) else None
    if label is None or not str(label).strip():
        return "column reward_model.ground_truth: it is empty"
    reason = _unanswerable(str(label)) if reward_type == "math" else None
    return None if reason is None else f"column reward_model.ground_truth: {str(label)[:40]!r} {reason}"


def _unanswerable(label: str) -> str | None:
    """Why no response could ever be correct under `reward.type: math`."""
    if len(label.strip()) > TAIL_CHARACTERS:
        return f"has more than the {TAIL_CHARACTERS} characters that `reward.type: math` reads of a response"
    return None if balanced(label) else "has unbalanced braces, which `reward.type: math` cannot read"


def _refuse(file: PromptFile, problems: Sequence[tuple[int, str]]) -> None:
    if problems:
        shown = "; ".join(f"row {index}, {problem}" for index, problem in problems[:SHOWN_PROBLEMS])
        more = f"; and {len(problems) - SHOWN_PROBLEMS} more" if len(problems) > SHOWN_PROBLEMS else ""
        raise DataError(f"{file.field}: {file.path}: {shown}{more}. Fix or remove those rows.")


def check(file: PromptFile, reward_type: str) -> list[Row]:
    """Rows in verl's schema. Raises DataError naming file, row and column of what cannot be used."""
    rows = read(file)
    problems = ((index, _problem(row, reward_type)) for index, row in enumerate(rows))
    _refuse(file, [(index, problem) for index, problem in problems if problem])
    return [
        {
            "data_source": file.set_name,
            "prompt": _messages(row["prompt"]),
            "reward_model": {"style": "rule", "ground_truth": str(row["reward_model"]["ground_truth"])},
            # As text: files whose rows have other fields could not be put together.
            "extra_info": {"index": index, "json": json.dumps(row.get("extra_info") or {}, default=str)},
        }
        for index, row in enumerate(rows)
    ]


def check_lengths(file: PromptFile, rows: Sequence[Row], limit: int, count: TokenCounter) -> None:
    """Raises DataError for prompts of more than `limit` tokens, counted with the chat template."""
    lengths = enumerate(count([row["prompt"] for row in rows]))
    _refuse(
        file,
        [
            (index, f"column prompt: {length} tokens, over spec.data.maxPromptTokens ({limit})")
            for index, length in lengths
            if length > limit
        ],
    )


def write(rows: Sequence[Row], path: Path) -> Path:
    """Write rows as parquet. Returns `path`, whose folder is created."""
    from pyarrow import Table, parquet

    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(Table.from_pylist(list(rows)), path)
    return path


# An epoch is a list of row numbers in memory, and is shuffled as a whole.
LONGEST_EPOCH: Final = 5_000_000


def draws(rows: Sequence[int], weights: Sequence[float]) -> list[int]:
    """How many prompts of each file an epoch has: in the proportion of the weights, and no fewer than the file's rows.

    The file whose rows are many for its weight occurs once; the others are repeated.
    """
    scale = max(count / weight for count, weight in zip(rows, weights, strict=True))
    return [max(count, round(weight * scale)) for count, weight in zip(rows, weights, strict=True)]


def epoch(rows: Sequence[int], weights: Sequence[float], seed: int) -> list[int]:
    """The row of each prompt of an epoch, numbered through all files, file by file.

    The rows of a file occur equally often, or some of them, which `seed` chooses, once more.
    """
    starts = [0, *accumulate(rows)]
    return [
        starts[number] + row
        for number, (count, drawn) in enumerate(zip(rows, draws(rows, weights), strict=True))
        for row in _repeated(count, drawn, random.Random(f"{seed}/{number}"))
    ]


def _repeated(rows: int, drawn: int, chooser: random.Random) -> Iterator[int]:
    passes, rest = divmod(drawn, rows)
    for _ in range(passes):
        yield from range(rows)
    yield from sorted(chooser.sample(range(rows), rest))
