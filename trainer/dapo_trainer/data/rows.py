"""A prompt file read and checked row by row, into the one schema that verl reads."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dapo_core.errors import DataError
from dapo_trainer.data.tokens import Counter
from dapo_trainer.rewards.answers import TAIL_CHARACTERS
from dapo_trainer.rewards.expressions import balanced

SHOWN_PROBLEMS = 5
Row = dict[str, Any]


@dataclass(frozen=True)
class PromptFile:
    """One file of a job: the field that names it, the set its metrics are filed under, and its place."""

    field: str
    set_name: str
    path: Path


def read(file: PromptFile) -> list[Row]:
    """The file's rows as they are. Raises DataError when it cannot be read or lacks a column."""
    try:
        if file.path.suffix in {".jsonl", ".json"}:
            from pyarrow import json as reader

            table = reader.read_json(file.path)
        else:
            from pyarrow import parquet

            table = parquet.read_table(file.path)
    except Exception as error:  # pyarrow raises OSError, ArrowInvalid and UnicodeDecodeError alike
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise DataError(
            f"{file.field}: {file.path} cannot be read ({reason}): name a whole parquet or JSON-lines file."
        ) from error
    missing = [column for column in ("prompt", "reward_model") if column not in table.column_names]
    if missing:
        raise DataError(
            f"{file.field}: {file.path} has no column {' and '.join(missing)} "
            f"(it has {', '.join(table.column_names)}): use verl's chat schema, "
            "a `prompt` of messages and `reward_model.ground_truth`."
        )
    if table.num_rows == 0:
        raise DataError(f"{file.field}: {file.path} has no rows.")
    rows: list[Row] = table.select(["prompt", "reward_model"]).to_pylist()
    return rows


def _messages(prompt: Any) -> list[dict[str, str]] | None:
    """The prompt as chat messages, or None when it is none or says nothing."""
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    if not isinstance(messages, list) or not messages or not all(isinstance(m, dict) for m in messages):
        return None
    said = all(isinstance(m.get("content"), str) and m["content"].strip() for m in messages)
    return messages if said and all(isinstance(m.get("role"), str) and m["role"] for m in messages) else None


def _problem(row: Row, reward_type: str) -> str | None:
    if _messages(row["prompt"]) is None:
        return "column prompt: it is empty or no list of {role, content} messages"
    holder = row["reward_model"]
    label = holder.get("ground_truth") if isinstance(holder, dict) else None
    if label is None or not str(label).strip():
        return "column reward_model.ground_truth: it is empty"
    reason = _unanswerable(str(label)) if reward_type == "math" else None
    return None if reason is None else f"column reward_model.ground_truth: {str(label)[:40]!r} {reason}"


def _unanswerable(label: str) -> str | None:
    """Why no answer could ever be right under `reward.type: math`."""
    if len(label.strip()) > TAIL_CHARACTERS:
        return f"has more than the {TAIL_CHARACTERS} characters that `reward.type: math` reads of a response"
    return None if balanced(label) else "has braces that do not match, which `reward.type: math` cannot read"


def _refuse(file: PromptFile, problems: Sequence[tuple[int, str]]) -> None:
    if problems:
        shown = "; ".join(f"row {index}, {problem}" for index, problem in problems[:SHOWN_PROBLEMS])
        more = f"; and {len(problems) - SHOWN_PROBLEMS} more" if len(problems) > SHOWN_PROBLEMS else ""
        raise DataError(f"{file.field}: {file.path}: {shown}{more}. Mend or leave out those rows.")


def check(file: PromptFile, reward_type: str) -> list[Row]:
    """Rows in the common schema. Raises DataError naming file, row and column of what cannot be used."""
    rows = read(file)
    found = ((index, _problem(row, reward_type)) for index, row in enumerate(rows))
    _refuse(file, [(index, problem) for index, problem in found if problem])
    return [
        {
            "data_source": file.set_name,
            "prompt": _messages(row["prompt"]),
            "reward_model": {"style": "rule", "ground_truth": str(row["reward_model"]["ground_truth"])},
            "extra_info": {"index": index},
        }
        for index, row in enumerate(rows)
    ]


def check_lengths(file: PromptFile, rows: Sequence[Row], limit: int, count: Counter) -> None:
    """Raises DataError for prompts of more than `limit` tokens, counted by `count` with the chat template."""
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
    from pyarrow import Table, parquet

    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(Table.from_pylist(list(rows)), path)
    return path
