"""`dapo data prepare`: from published rows to prompts to train on, against a plain count, byte for byte."""

import json
from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any

import pyarrow
import pytest
from published_data import Row, row, saved
from pyarrow import parquet

from dapo_core.errors import DataError, ModelError
from dapo_trainer.data.model_files import token_counter, tokenizer_folder
from dapo_trainer.data.preparation import SCHEMA, PreparationRequest, prepare
from dapo_trainer.data.preparation_report import EDGES, Lengths
from dapo_trainer.data.prompt_files import PromptFile, check
from dapo_trainer.data.prompts import PAPER_TEMPLATE, label_of, normalized, prompt_key
from dapo_trainer.data.source_tables import Columns, SourceFile


def asked(folder: Path, rows: Sequence[Row], **more: Any) -> PreparationRequest:
    source = saved(folder / "source.parquet", rows)
    return replace(PreparationRequest("maths", [source], folder / "out" / "maths.parquet"), **more)


def questions(request: PreparationRequest) -> list[str]:
    return [made["prompt"][0]["content"] for made in parquet.read_table(request.out).to_pylist()]


def answers(request: PreparationRequest) -> list[str]:
    return [made["reward_model"]["ground_truth"] for made in parquet.read_table(request.out).to_pylist()]


def refused(request: PreparationRequest) -> str:
    with pytest.raises(DataError) as error:
        prepare(request)
    message = str(error.value)
    assert "\n" not in message and message.endswith(".")
    assert not request.out.exists() and not request.report_file.exists() and not request.conflicts_file.exists()
    assert list(request.out.parent.iterdir()) == []
    return message


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param("What is 1+1?", "what is  1 + 1?\n", id="case and spacing"),
        pytest.param("Let $x=1$.", "Let \\(x = 1\\).", id="math marks"),
        pytest.param("$\\dfrac{1}{2}$", "$\\frac{1}{2}$", id="size of a fraction"),
        pytest.param("$\\left( 1\\right)$", "$(1)$", id="size of a bracket"),
        pytest.param("1{,}000\\,m", "1{,}000 m", id="thin space"),
        pytest.param("caf\N{LATIN SMALL LETTER E WITH ACUTE}", "cafe\N{COMBINING ACUTE ACCENT}", id="composed letter"),
        pytest.param(PAPER_TEMPLATE.replace("{prompt}", "1+1?"), "1+1?", id="the paper's instruction"),
        pytest.param(
            "1+1? Please reason step by step, and put your final answer within \\boxed{}.", "1+1?", id="boxed"
        ),
    ],
)
def test_prompts_that_ask_the_same(one: str, other: str) -> None:
    assert normalized(one) == normalized(other) and prompt_key(one) == prompt_key(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param("1+1?", "1-1?", id="sign"),
        pytest.param("x^2", "x_2", id="mark"),
        pytest.param("10\N{SUPERSCRIPT TWO}", "102", id="superscript"),
        pytest.param("a \\leq b", "a \\geq b", id="command"),
        pytest.param(PAPER_TEMPLATE.replace("{prompt}", ""), "", id="all instruction"),
    ],
)
def test_prompts_that_do_not(one: str, other: str) -> None:
    assert prompt_key(one) != prompt_key(other)


@pytest.mark.parametrize(
    ("answer", "label"),
    [("34", "34"), (" 1,000 ", "1000"), ("$-7$", "-7"), ("042", "42"), ("34.0", "34"), (" 1/2", "1/2"), ("x", "x")],
)
def test_labels(answer: str, label: str) -> None:
    assert label_of(answer) == label


def test_each_prompt_once_where_it_was_first_and_as_it_was_first_written(tmp_path: Path) -> None:
    rows = [row("b?", "2"), row("A ?", "1"), row("b?", "2"), row("a?", "1.0"), row("c?", "3"), row("B?", "02")]
    request = asked(tmp_path, rows)
    report = prepare(request)
    assert (questions(request), answers(request)) == (["b?", "A ?", "c?"], ["2", "1", "3"])
    assert (report.rows, report.prompts, report.kept, report.copies) == (6, 3, 3, (1, 3))
    assert parquet.read_schema(request.out).equals(SCHEMA)
    made = parquet.read_table(request.out).to_pylist()[0]
    assert made == {
        "data_source": "maths",
        "prompt": [{"role": "user", "content": "b?"}],
        "ability": "MATH",
        "reward_model": {"style": "rule", "ground_truth": "2"},
        "extra_info": {"index": prompt_key("b?")},
    }


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl"])
def test_what_a_reward_needs_of_a_row_is_kept(tmp_path: Path, suffix: str) -> None:
    """The first copy's, with the fields of all rows; `index` is ours."""
    tests = [["assert f(1) == 2", "assert f(2) == 3"], [], ["assert g()"]]
    extras = [{"tests": made, "level": {"of": place, "it's": 0.5}} for place, made in enumerate(tests)]
    rows = [row(text, "1") | {"extra_info": extra} for text, extra in zip("aba", extras, strict=True)]
    source = saved(tmp_path / f"given{suffix}", [*rows, row("c", "1") | {"extra_info": None}])
    request = asked(tmp_path, rows, sources=[source])
    prepare(request)
    digest = sha256(request.out.read_bytes()).digest()
    made = [one["extra_info"] for one in parquet.read_table(request.out).to_pylist()]
    nothing = {"index": prompt_key("c"), "tests": None, "level": None}
    assert made == [{**extra, "index": prompt_key(key)} for key, extra in zip("ab", extras, strict=False)] + [nothing]
    prepare(request)
    assert sha256(request.out.read_bytes()).digest() == digest
    [first, *_] = check(PromptFile("spec.data.train[0]", "maths", request.out), "custom")
    assert json.loads(first["extra_info"]["json"]) == made[0]


@pytest.mark.parametrize(
    ("extra", "sentence"),
    [
        pytest.param("level 3", 'extra_info: "level 3" is not an object', id="text"),
        pytest.param([1, 2], "extra_info: [1,2] is not an object", id="list"),
        pytest.param({"level": 1, "Level": 2}, "its fields Level, level cannot be the columns", id="case"),
    ],
)
def test_extra_info_that_is_no_object_is_refused(tmp_path: Path, extra: object, sentence: str) -> None:
    source = saved(tmp_path / "source.jsonl", [row() | {"extra_info": extra}])
    assert sentence in refused(asked(tmp_path, [row()], sources=[source]))


def test_prompts_whose_copies_disagree_are_listed_and_left_out(tmp_path: Path) -> None:
    rows = [row("a?", "1"), row("b?", "2"), row("A?", "7"), row("a?", "1.0"), row("c?", "x"), row("c?", "3")]
    request = asked(tmp_path, rows, integers=True)
    report = prepare(request)
    assert questions(request) == ["b?"] and (report.conflicting, report.not_integer) == (2, 0)
    listed = [json.loads(line) for line in request.conflicts_file.read_text().splitlines()]
    assert listed == [
        {"prompt": "a?", "answers": {"1": 2, "7": 1}},
        {"prompt": "c?", "answers": {"x": 1, "3": 1}},
    ]


@pytest.mark.parametrize(("integers", "kept"), [(True, ["a?"]), (False, ["a?", "b?", "c?"])])
def test_the_papers_integer_rule(tmp_path: Path, integers: bool, kept: list[str]) -> None:
    request = asked(tmp_path, [row("a?", "1"), row("b?", "1/2"), row("c?", "\\pi")], integers=integers)
    report = prepare(request)
    assert questions(request) == kept and report.not_integer == 3 - len(kept)


def test_rows_without_a_prompt_or_an_answer_are_counted(tmp_path: Path) -> None:
    rows = [row(), row(" "), row(answer=None), row(answer=" "), row() | {"prompt": []}, row() | {"prompt": None}]
    report = prepare(asked(tmp_path, rows))
    assert (report.rows, report.unusable_rows, report.prompts) == (6, 5, 1)


def test_prompts_over_the_limit_are_counted(tmp_path: Path) -> None:
    def count(conversations: Sequence[Any]) -> list[int]:
        return [len(one[0]["content"]) for one in conversations]

    request = asked(tmp_path, [row("x" * n, "1") for n in (4, 5, 6, 90)], token_limit=5, count=count)
    report = prepare(request)
    assert [len(question) for question in questions(request)] == [4, 5] and report.too_long == 2
    assert report.lengths.unit == "tokens" and report.lengths.longest == 90
    assert report.lengths.rows() == [(0, 32, 3), (32, 64, 0), (64, 96, 1)]


@pytest.mark.engine  # transformers imports torch
def test_the_limit_is_of_what_the_rollout_sees(tmp_path: Path) -> None:
    """With the demo's real tokenizer, a token a byte and one before and after; the template counts."""
    from dapo_trainer.demo.warm_start import tokenizer

    tokenizer().save_pretrained(tmp_path / "model")
    count = token_counter(tokenizer_folder(str(tmp_path / "model"), "--model"))
    assert count([]) == [] and count([[{"role": "user", "content": "1+1?"}]]) == [6]
    report = prepare(asked(tmp_path, [row("1+1?"), row("2+2=?")], template="Say {prompt}", token_limit=10, count=count))
    assert (report.kept, report.too_long) == (1, 1)


@pytest.mark.engine  # transformers imports torch
def test_a_folder_without_a_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=f"--model: {tmp_path} has no tokenizer with a chat template"):
        token_counter(tokenizer_folder(tmp_path.as_uri(), "--model"), "--model")


def reference(rows: Sequence[Row]) -> dict[str, int]:
    """The same counts, one row at a time."""
    labels: dict[str, set[str]] = {}
    for one in rows:
        labels.setdefault(normalized(one["prompt"][0]["content"]), set()).add(
            label_of(one["reward_model"]["ground_truth"])
        )
    agreed = [next(iter(found)) for found in labels.values() if len(found) == 1]
    integers = [label for label in agreed if label.lstrip("-").isdigit()]
    return {
        "rows": len(rows),
        "prompts": len(labels),
        "conflicting": len(labels) - len(agreed),
        "not_integer": len(agreed) - len(integers),
        "kept": len(integers),
    }


def many(seed: int, count: int = 6_000) -> list[Row]:
    random = Random(seed)
    wording = ["{}+{}?", " {} + {}?", "${}+{}?$", "{}  +{}?"]
    rows = []
    for _ in range(count):
        a, b = random.randint(1, 40), random.randint(1, 40)
        answer = str(a + b) if random.random() < 0.995 else random.choice(["1/2", str(a - b), f"{a + b}.0"])
        rows.append(row(random.choice(wording).format(a, b), answer))
    return rows


@pytest.mark.parametrize("suffix", ["parquet", "jsonl"])
def test_counts_are_those_of_a_plain_loop_and_bytes_the_same_each_time(tmp_path: Path, suffix: str) -> None:
    """On more rows than DuckDB reads at a time, by as many threads as there are."""
    rows = many(1)
    source = saved(tmp_path / f"many.{suffix}", rows)
    digests = set()
    for attempt in range(2):
        request = PreparationRequest("maths", [source], tmp_path / f"{attempt}" / "a.parquet", integers=True)
        report = prepare(request)
        assert {name: getattr(report, name) for name in reference(rows)} == reference(rows)
        written = [request.out, request.report_file, request.conflicts_file]
        digests.add(sha256(b"".join(file.read_bytes() for file in written)).hexdigest())
    assert len(digests) == 1
    first = list(dict.fromkeys(normalized(one["prompt"][0]["content"]) for one in rows))
    kept = [normalized(question) for question in questions(request)]
    assert kept == [question for question in first if question in set(kept)], "in the order of the first rows"


def test_parquet_and_json_lines_make_the_same(tmp_path: Path) -> None:
    made = set()
    for suffix in ("parquet", "jsonl"):
        out = tmp_path / suffix / "a.parquet"
        prepare(PreparationRequest("maths", [saved(tmp_path / f"many.{suffix}", many(2, 500))], out))
        made.add(out.read_bytes())
    assert len(made) == 1


def test_several_files_are_one_set_in_their_order(tmp_path: Path) -> None:
    files = [saved(tmp_path / f"{i}.parquet", [row(f"{i}?", "1"), row("same?", "2")]) for i in range(3)]
    report = prepare(request := PreparationRequest("maths", files, tmp_path / "out" / "a.parquet"))
    assert questions(request) == ["0?", "same?", "1?", "2?"] and report.copies == (1, 3)


@pytest.mark.parametrize("suffix", ["parquet", "jsonl"])
def test_mapped_columns(tmp_path: Path, suffix: str) -> None:
    rows = [{"problem": "1+1?", "solution": {"final": 2}}, {"problem": "2+2?", "solution": {"final": 4}}]
    source = saved(tmp_path / f"a.{suffix}", rows)
    columns = Columns("problem", "solution.final")
    prepare(request := PreparationRequest("maths", [source], tmp_path / "a.parquet", columns, template=PAPER_TEMPLATE))
    assert answers(request) == ["2", "4"]
    assert questions(request)[0].endswith('\n\n1+1?\n\nRemember to put your answer on its own line after "Answer:".')


def test_values_of_json_are_taken_as_they_are_written(tmp_path: Path) -> None:
    lines = [("a?", 2), ("b?", "1/2"), ("c?", "12:30"), ("d?", "2026-01-02"), ("e?", 1.50), ("f?", True)]
    source = saved(tmp_path / "a.jsonl", [{"prompt": q, "answer": a} for q, a in lines])
    prepare(request := PreparationRequest("maths", [source], tmp_path / "a.parquet", Columns(answer="answer")))
    assert answers(request) == ["2", "1/2", "12:30", "2026-01-02", "1.5", "true"]


def test_a_column_may_have_a_dot_in_its_name(tmp_path: Path) -> None:
    table = pyarrow.table({"the.prompt": ["1+1?"], 'an "answer"': ["2"]})
    parquet.write_table(table, tmp_path / "it's.parquet")
    source = SourceFile("s", tmp_path / "it's.parquet")
    prepare(request := PreparationRequest("m", [source], tmp_path / "a.parquet", Columns("the.prompt", 'an "answer"')))
    assert (questions(request), answers(request)) == (["1+1?"], ["2"])


def test_a_systems_message_is_kept_and_tells_prompts_apart(tmp_path: Path) -> None:
    system = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1+1?"}]
    request = asked(tmp_path, [row() | {"prompt": system}, row()])
    assert prepare(request).kept == 2
    assert parquet.read_table(request.out).to_pylist()[0]["prompt"] == system


class TestValidation:
    held_out = (row("1 + 1?"), row("9+9?", "18"), row("9+9?", "18"))

    def request(self, folder: Path, on_overlap: str) -> PreparationRequest:
        validation = [saved(folder / "validation.parquet", self.held_out)]
        rows = [row("1+1?"), row("9+9?", "18"), row("2+2?", "4")]
        return asked(folder, rows, validation=validation, on_overlap=on_overlap)

    def test_overlap_is_refused(self, tmp_path: Path) -> None:
        assert refused(self.request(tmp_path, "refuse")) == (
            "The training data contain 2 of the 2 prompts of validation.parquet (1 exactly): "
            "drop them with --overlap drop, or keep them with --overlap keep."
        )

    @pytest.mark.parametrize(
        ("choice", "kept"), [("drop", ["2+2?"]), ("keep", ["1+1?", "9+9?", "2+2?"])], ids=["drop", "keep"]
    )
    def test_unless_told_otherwise(self, tmp_path: Path, choice: str, kept: list[str]) -> None:
        report = prepare(request := self.request(tmp_path, choice))
        assert questions(request) == kept and report.in_validation == 3 - len(kept)
        [overlap] = report.overlaps
        assert (overlap.prompts, overlap.exact, overlap.normalized) == (2, 1, 2)

    def test_none_is_no_reason_to_refuse(self, tmp_path: Path) -> None:
        validation = [saved(tmp_path / "v.jsonl", [row("7?")])]
        assert prepare(asked(tmp_path, [row()], validation=validation)).overlaps[0].normalized == 0

    def test_prepared_validation_data_beside_mapped_training_data(self, tmp_path: Path) -> None:
        source = saved(tmp_path / "a.jsonl", [{"q": "1+1?", "a": "2"}])
        validation = [saved(tmp_path / "v.parquet", [row("1+1?")])]
        with pytest.raises(DataError, match=r"1 of the 1 prompts of v\.parquet"):
            prepare(PreparationRequest("m", [source], tmp_path / "a.parquet", Columns("q", "a"), validation=validation))


@pytest.mark.parametrize(
    ("name", "rows", "sentence"),
    [
        pytest.param("a.parquet", [{"q": "1?"}], "a.parquet has no column prompt (it has q): set", id="parquet column"),
        pytest.param("a.jsonl", [{"q": "1?"}], "a.jsonl has no column prompt (it has q): set", id="JSON column"),
        pytest.param("a.jsonl", [], "a.jsonl has no column prompt (it has none): set", id="no lines"),
        pytest.param(
            "a.parquet", [{"prompt": "1?"}], "a.parquet has no column reward_model.ground_truth (it has", id="answer"
        ),
        pytest.param(
            "a.parquet",
            [{"prompt": 1, "reward_model": {"ground_truth": "2"}}],
            "a.parquet: column prompt is BIGINT: use a column of text, or of lists of {role, content}.",
            id="prompt is a number",
        ),
        pytest.param("a.jsonl", [row(" ")], "a.jsonl: none of its 1 rows is usable.", id="nothing left"),
    ],
)
def test_data_that_cannot_be_used(tmp_path: Path, name: str, rows: list[Row], sentence: str) -> None:
    source = saved(tmp_path / name, rows)
    assert sentence in refused(PreparationRequest("maths", [source], tmp_path / "out" / "a.parquet"))


@pytest.mark.parametrize(
    ("name", "content"), [("a.parquet", b"PAR1"), ("a.jsonl", b'{"prompt": "1?"\n{'), ("b.jsonl", b"x\n")]
)
def test_a_file_that_cannot_be_read(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    message = refused(PreparationRequest("maths", [SourceFile(name, tmp_path / name)], tmp_path / "out" / "a.parquet"))
    assert message.startswith(f"{name} cannot be read (") and message.endswith(
        "use a complete parquet or JSON-lines file."
    )


def test_a_refused_preparation_leaves_the_last_one_alone(tmp_path: Path) -> None:
    prepare(request := asked(tmp_path, [row()]))
    before = request.out.read_bytes()
    saved(tmp_path / "source.parquet", [row(" ")])
    with pytest.raises(DataError):
        prepare(request)
    assert request.out.read_bytes() == before


class TestReport:
    def test_bins(self) -> None:
        lengths = Lengths("tokens")
        assert lengths.rows() == []
        lengths.add([0, 1, 32, 33, EDGES[-1], EDGES[-1] + 1])
        assert lengths.rows()[0] == (0, 32, 3) and lengths.rows()[-1] == (EDGES[-1], None, 1)
        assert sum(count for *_, count in lengths.rows()) == 6

    def test_words(self, tmp_path: Path) -> None:
        rows = [row("a?", "1"), row("a?", "2"), row("b?", "x"), row("c?", "3"), row(" ")]
        assert prepare(asked(tmp_path, rows, integers=True)).lines() == [
            "           5  rows read",
            "           1  rows without a prompt or an answer",
            "           3  distinct prompts, 1 to 2x each",
            "          -1  dropped: copies with different answers",
            "          -1  dropped: answer is not an integer",
            "           1  kept",
            "",
            "characters per prompt, including prompts dropped as too long",
            "        1-32          1  ########################################",
        ]
