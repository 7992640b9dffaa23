"""Rows of prompt files: one schema for verl, and what is refused, with file, row, column and remedy."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from prompt_rows import Row, refused, row, saved
from pyarrow import parquet

from dapo_trainer.data.prompt_files import PromptFile, check, check_lengths, read, write


@pytest.mark.parametrize("name", ["prompts.parquet", "prompts.jsonl", "prompts.json"])
def test_rows_come_in_one_schema(tmp_path: Path, name: str) -> None:
    other = row("2+2?", "4", data_source="elsewhere", extra_info={"split": "x"})
    file = saved(tmp_path / name, [row(extra_info={"split": "y"}), other])
    assert check(file, "math")[1] == {
        "data_source": "train",
        "prompt": [{"role": "user", "content": "2+2?"}],
        "reward_model": {"style": "rule", "ground_truth": "4"},
        "extra_info": {"index": 1, "json": '{"split": "x"}'},
    }


def test_a_prompt_may_be_text_and_a_label_a_number(tmp_path: Path) -> None:
    file = saved(tmp_path / "a.jsonl", [{"prompt": "1+1?", "reward_model": {"ground_truth": 2}}])
    [made] = check(file, "math")
    assert made["prompt"] == [{"role": "user", "content": "1+1?"}] and made["reward_model"]["ground_truth"] == "2"


def test_what_is_written_for_verl_reads_the_same(tmp_path: Path) -> None:
    rows = check(saved(tmp_path / "a.parquet", [row(), row("3+3?", "6")]), "math")
    assert parquet.read_table(write(rows, tmp_path / "deep" / "b.parquet")).to_pylist() == rows


EMPTY = "column prompt: it is empty or not a list of {role, content} messages"


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        pytest.param({"prompt": []}, EMPTY, id="no messages"),
        pytest.param({"prompt": None}, EMPTY, id="null prompt"),
        pytest.param({"prompt": [{"role": "user", "content": ""}]}, EMPTY, id="empty content"),
        pytest.param({"prompt": [{"role": "user", "content": " \n"}]}, EMPTY, id="blank content"),
        pytest.param({"prompt": [{"role": "user", "content": None}]}, EMPTY, id="null content"),
        pytest.param({"prompt": [{"role": None, "content": "1+1?"}]}, EMPTY, id="no role"),
        pytest.param(
            {"reward_model": {"ground_truth": None}}, "column reward_model.ground_truth: it is empty", id="null label"
        ),
        pytest.param(
            {"reward_model": {"ground_truth": " "}}, "column reward_model.ground_truth: it is empty", id="blank label"
        ),
        pytest.param({"reward_model": None}, "column reward_model.ground_truth: it is empty", id="null reward_model"),
        pytest.param(
            {"reward_model": {"ground_truth": "\\frac{1}{2"}},
            "column reward_model.ground_truth: '\\\\frac{1}{2' has unbalanced braces, "
            "which `reward.type: math` cannot read",
            id="unbalanced braces",
        ),
        pytest.param(
            {"reward_model": {"ground_truth": "9" * 9000}},
            f"column reward_model.ground_truth: '{'9' * 40}' has more than the 300 characters "
            "that `reward.type: math` reads of a response",
            id="9,000 digits",
        ),
    ],
)
@pytest.mark.parametrize("name", ["prompts.parquet", "prompts.jsonl"])
def test_an_unusable_row(tmp_path: Path, name: str, bad: Row, problem: str) -> None:
    file = saved(tmp_path / name, [row(), row() | bad])
    message = refused(lambda: check(file, "math"))
    assert message == f"spec.data.train[0].source: {file.path}: row 1, {problem}. Fix or remove those rows."


@pytest.mark.parametrize(("rule", "truth"), [("math", "\\frac{1}{2}"), ("math", "x^2"), ("exact", "{" * 400)])
def test_a_label_that_the_rule_can_read(tmp_path: Path, rule: str, truth: str) -> None:
    assert check(saved(tmp_path / "a.parquet", [row(truth=truth)]), rule)


def test_many_unusable_rows_are_counted(tmp_path: Path) -> None:
    message = refused(lambda: check(saved(tmp_path / "a.jsonl", [row(truth="{")] * 12), "math"))
    assert message.count("row ") == 5 and "; and 7 more. Fix" in message


@pytest.mark.parametrize(
    ("rows", "missing"),
    [
        pytest.param([{"question": "1+1?", "answer": "2"}], "prompt and reward_model", id="both"),
        pytest.param([{"prompt": "1+1?"}], "reward_model", id="label"),
        pytest.param([{"reward_model": {"ground_truth": "2"}}], "prompt", id="prompt"),
    ],
)
def test_missing_columns(tmp_path: Path, rows: list[Row], missing: str) -> None:
    file = saved(tmp_path / "a.parquet", rows)
    has = ", ".join(rows[0])
    assert f"{file.path} has no column {missing} (it has {has}): use verl's chat schema" in refused(lambda: read(file))


def test_a_label_that_is_no_mapping(tmp_path: Path) -> None:
    message = refused(lambda: check(saved(tmp_path / "a.jsonl", [{"prompt": "1?", "reward_model": "2"}]), "math"))
    assert "row 0, column reward_model.ground_truth: it is empty" in message


@pytest.mark.parametrize(
    ("name", "content"),
    [
        pytest.param("a.parquet", b"", id="empty parquet"),
        pytest.param("a.parquet", b"PAR1 and then nothing", id="corrupt parquet"),
        pytest.param("a.parquet", b"version https://git-lfs.github.com/spec/v1\n", id="pointer instead of a file"),
        pytest.param("a.jsonl", b"", id="empty JSONL"),
        pytest.param("a.jsonl", b'{"prompt": "1+1?"', id="torn JSONL"),
        pytest.param("a.jsonl", b"\xff\xfe\x00", id="no text"),
    ],
)
def test_a_file_that_cannot_be_read(tmp_path: Path, name: str, content: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    message = refused(lambda: read(PromptFile("spec.data.validation[0].source", "aime", path)))
    assert message.startswith(f"spec.data.validation[0].source: {path} cannot be read (")
    assert message.endswith("): use a complete parquet or JSON-lines file.")


def test_a_truncated_parquet_file(tmp_path: Path) -> None:
    file = saved(tmp_path / "a.parquet", [row()] * 50)
    file.path.write_bytes(file.path.read_bytes()[:-20])
    assert "cannot be read" in refused(lambda: read(file))


def test_a_file_without_rows(tmp_path: Path) -> None:
    schema = pyarrow.table({"prompt": pyarrow.array([], "string"), "reward_model": pyarrow.array([], "string")})
    parquet.write_table(schema, tmp_path / "a.parquet")
    file = PromptFile("spec.data.train[0].source", "train", tmp_path / "a.parquet")
    assert refused(lambda: read(file)) == f"spec.data.train[0].source: {file.path} has no rows."


def characters(conversations: Sequence[Any]) -> list[int]:
    return [len(messages[0]["content"]) for messages in conversations]


def test_prompts_over_their_limit_are_named(tmp_path: Path) -> None:
    file = saved(tmp_path / "a.parquet", [row("x" * 8), row("x" * 9), row("x" * 30)])
    rows = check(file, "math")
    check_lengths(file, rows[:1], 8, characters)
    message = refused(lambda: check_lengths(file, rows, 8, characters))
    assert message == (
        f"spec.data.train[0].source: {file.path}: row 1, column prompt: 9 tokens, over spec.data.maxPromptTokens (8); "
        "row 2, column prompt: 30 tokens, over spec.data.maxPromptTokens (8). Fix or remove those rows."
    )
