"""What a job names is refused before anything starts: one sentence with file, row, column and remedy."""

import json
import os
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy
import pyarrow
import pytest
from builders import job
from pyarrow import parquet
from safetensors.numpy import save_file

from dapo_core.errors import DapoError, DataError, ModelError, SpecError
from dapo_core.jobspec import DAPOJob
from dapo_trainer.data.model_files import check_model, largest_tensor_bytes
from dapo_trainer.data.prompt_files import PromptFile, check, check_lengths, read, write
from dapo_trainer.data.sources import data_file, local_path, model_folder
from dapo_trainer.preflight import check as check_job
from dapo_trainer.preflight import fetch

FAKES = Path(__file__).parent / "fakes"
Row = dict[str, Any]


def row(question: str = "1+1?", truth: Any = "2", **more: Any) -> Row:
    return {"prompt": [{"role": "user", "content": question}], "reward_model": {"ground_truth": truth}, **more}


def saved(path: Path, rows: list[Row]) -> PromptFile:
    if path.suffix == ".parquet":
        parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    else:
        path.write_text("".join(json.dumps(one) + "\n" for one in rows))
    return PromptFile("spec.data.train[0].source", "train", path)


def refused(action: Callable[[], object], kind: type[DapoError] = DataError) -> str:
    with pytest.raises(kind) as error:
        action()
    message = str(error.value)
    assert "\n" not in message and message.endswith(".")
    return message


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


NO_KEYS = (
    "DAPO_S3_ACCESS_KEY and DAPO_S3_SECRET_KEY are not set: set them to the keys of the store, on Kubernetes in the "
    "Secret of spec.stores.secretName."
)


class TestSources:
    @pytest.fixture(autouse=True)
    def no_keys(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("DAPO_S3_ACCESS_KEY", raising=False)
        monkeypatch.delenv("DAPO_S3_SECRET_KEY", raising=False)

    def test_a_claim_is_where_the_operator_mounts_it(self) -> None:
        assert local_path("pvc://data/sets/a.parquet") == Path("/pvc/data/sets/a.parquet")

    def test_a_uri_may_be_quoted(self) -> None:
        assert local_path("file:///a%20b/c.parquet") == Path("/a b/c.parquet")

    @pytest.mark.parametrize(
        ("uri", "sentence"),
        [
            ("file:///nowhere/a.parquet", "does not exist: name a parquet or JSON-lines file."),
            ("s3://bucket/a.parquet", f"cannot be read: {NO_KEYS}"),
            ("pvc://claim/a.parquet", "does not exist: name a parquet or JSON-lines file."),
            ("ftp://host/a.parquet", "is not on this machine: use a file:///, pvc://, s3:// or hf:// source."),
            ("hf://org/name", "is not a file of a dataset: use hf://datasets/ORGANIZATION/NAME/FILE."),
            ("hf://datasets/org/name", "is not a file of a dataset: use hf://datasets/ORGANIZATION/NAME/FILE."),
        ],
    )
    def test_data(self, uri: str, sentence: str) -> None:
        assert (
            refused(lambda: data_file(uri, "spec.data.train[0].source"))
            == f"spec.data.train[0].source {uri} {sentence}"
        )

    @pytest.mark.parametrize(
        ("uri", "sentence"),
        [
            ("file:///nowhere", "does not exist: name a folder in Hugging Face's format."),
            ("file:///tmp", "has no config.json: name a folder in Hugging Face's format."),
            ("s3://bucket/model", f"cannot be read: {NO_KEYS}"),
            ("pvc://claim/model", "does not exist: name a folder in Hugging Face's format."),
        ],
    )
    def test_model(self, uri: str, sentence: str) -> None:
        assert refused(lambda: model_folder(uri), ModelError) == f"spec.model.source {uri} {sentence}"


def model(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text('{"model_type": "qwen2"}')
    save_file({"w": numpy.zeros((64, 64), numpy.float32)}, folder / "model.safetensors")
    return folder


def spoil(name: str, content: str | bytes | None) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        if content is None:
            (folder / name).unlink()
        else:
            (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())

    return change


def cut(bytes_kept: int) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        os.truncate(folder / "model.safetensors", bytes_kept)

    return change


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        pytest.param(spoil("config.json", "{"), r"config\.json cannot be read \(", id="config is torn"),
        pytest.param(spoil("config.json", "[]"), r"config\.json is not a mapping", id="config is no mapping"),
        pytest.param(spoil("config.json", "{}"), r"config\.json has no model_type", id="config of another thing"),
        pytest.param(spoil("config.json", b"\xff\xfe"), r"config\.json cannot be read \(", id="config is no text"),
        pytest.param(spoil("model.safetensors", None), r" has no weights", id="no weights"),
        pytest.param(spoil("model.safetensors", ""), r"model\.safetensors is incomplete \(", id="empty weights"),
        pytest.param(cut(4), r"model\.safetensors is incomplete \(", id="weights cut in the header's length"),
        pytest.param(cut(40), r"model\.safetensors is incomplete \(", id="weights cut in the header"),
        pytest.param(cut(9000), r"model\.safetensors is incomplete \(", id="weights cut in the data"),
        pytest.param(
            spoil("model.safetensors", "version https://git-lfs.github.com/spec/v1\noid sha256:0\n"),
            r"model\.safetensors is incomplete \(",
            id="pointer instead of weights",
        ),
        pytest.param(
            spoil("model.safetensors.index.json", '{"weight_map": {"w": "model-00002-of-00002.safetensors"}}'),
            r"model-00002-of-00002\.safetensors is missing, but model\.safetensors\.index\.json lists it",
            id="a shard is missing",
        ),
        pytest.param(
            spoil("model.safetensors.index.json", "{"), r"index\.json cannot be read \(", id="index of shards is torn"
        ),
    ],
)
def test_a_torn_model(tmp_path: Path, change: Callable[[Path], None], sentence: str) -> None:
    folder = model(tmp_path / "model")
    check_model(folder)
    change(folder)
    message = refused(lambda: check_model(folder), ModelError)
    assert re.search(sentence, message) and message.startswith("spec.model.source: ")
    assert message.endswith(": copy or download the model again.")


def test_b7_the_largest_tensor_by_its_header(tmp_path: Path) -> None:
    save_file({"small": numpy.zeros(3, "float16"), "large": numpy.zeros((5, 7), "float16")}, tmp_path / "a.safetensors")
    assert largest_tensor_bytes(tmp_path) == 5 * 7 * 4


def test_b7_without_headers_the_embedding_is_the_largest(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"vocab_size": 151936, "hidden_size": 896}')
    assert largest_tensor_bytes(tmp_path) == 151936 * 896 * 4


@pytest.fixture
def good(tmp_path: Path) -> DAPOJob:
    """A job whose files are all there."""
    saved(tmp_path / "train.parquet", [row()])
    saved(tmp_path / "aime.jsonl", [row("2+2?", "4")])
    return local_job(tmp_path)


def local_job(folder: Path, **groups: Any) -> DAPOJob:
    if not (folder / "model").exists():
        model(folder / "model")
    data = {
        "train": [{"source": (folder / "train.parquet").as_uri()}],
        "validation": [{"name": "aime", "source": (folder / "aime.jsonl").as_uri()}],
        "maxPromptTokens": 12,
    }
    return job(**{"model": {"source": (folder / "model").as_uri()}, "data": data, "batch": {"prompts": 1}} | groups)


class TestJob:
    def test_a_good_job_passes(self, good: DAPOJob) -> None:
        check_job(good)

    def test_each_file_is_named_by_its_field(self, good: DAPOJob, tmp_path: Path) -> None:
        saved(tmp_path / "aime.jsonl", [row(truth="{")])
        assert refused(lambda: check_job(good)).startswith(
            f"spec.data.validation[0].source: {tmp_path}/aime.jsonl: row 0"
        )
        (tmp_path / "train.parquet").unlink()
        assert refused(lambda: check_job(good)).startswith("spec.data.train[0].source file://")

    @pytest.mark.parametrize(
        ("more", "fits"),
        [
            pytest.param({"max_position_embeddings": 4096}, False, id="too short"),
            pytest.param({"max_position_embeddings": 20_492}, True, id="just enough"),
            pytest.param(
                {"max_position_embeddings": 4096, "rope_scaling": {"rope_type": "yarn", "factor": 8.0}},
                True,
                id="scaled",
            ),
            pytest.param(
                {"max_position_embeddings": 4096, "rope_parameters": {"rope_type": "default"}}, False, id="not scaled"
            ),
        ],
    )
    def test_s4_longer_responses_than_the_model_takes_are_refused(
        self, good: DAPOJob, tmp_path: Path, more: dict[str, Any], fits: bool
    ) -> None:
        (tmp_path / "model" / "config.json").write_text(json.dumps({"model_type": "qwen2", **more}))
        if fits:
            check_job(good)
            return
        assert refused(lambda: check_job(good), SpecError) == (
            "spec.batch.maxResponseTokens is 20480 and spec.data.maxPromptTokens is 12, together more than the model's "
            "context of 4096 tokens: lower them so that their sum is at most that."
        )

    def test_b9_a_step_of_more_prompts_than_there_are_is_refused(self, good: DAPOJob, tmp_path: Path) -> None:
        larger = local_job(tmp_path, batch={"prompts": 2})
        assert refused(lambda: check_job(larger), SpecError) == (
            "spec.batch.prompts is 2, but spec.data.train has only 1 prompts: add data, or set it to at most 1."
        )

    def test_s1_functions_are_loaded_before_anything_starts(self, good: DAPOJob, tmp_path: Path) -> None:
        (tmp_path / "score.py").write_text("def fine(response, truth, *, prompt):\n    return 1.0\n")
        additional = [
            {"name": "a", "type": "custom", "file": f"{tmp_path}/score.py:fine"},
            {"name": "b", "type": "custom", "file": f"{tmp_path}/score.py:none"},
            {"name": "c", "type": "custom", "file": f"{tmp_path}/nowhere.py:fine"},
        ]
        reward = {"type": "custom", "file": f"{tmp_path}/score.py:fine", "additional": additional}
        with pytest.raises(SpecError) as error:
            check_job(local_job(tmp_path, reward=reward))
        missing, absent = error.value.problems
        assert missing.field == "spec.reward.additional[1].file" and "has no attribute 'none'" in missing.message
        assert absent.message == (
            f"spec.reward.additional[2].file is {tmp_path}/nowhere.py:fine, which cannot be imported "
            f"(FileNotFoundError: {tmp_path}/nowhere.py is not a file): fix the file or its path."
        )

    def test_a_torn_model_is_found(self, good: DAPOJob, tmp_path: Path) -> None:
        cut(9000)(tmp_path / "model")
        refused(lambda: check_job(good), ModelError)
        refused(lambda: fetch(good, tmp_path / "work", None), ModelError)

    @pytest.mark.engine  # transformers imports torch
    def test_a_model_without_a_tokenizer(self, good: DAPOJob, tmp_path: Path) -> None:
        message = refused(lambda: fetch(good, tmp_path / "work", None), ModelError)
        assert f"{tmp_path}/model has no tokenizer with a chat template (" in message

    @pytest.mark.parametrize(
        ("module", "reason"),
        [
            ("no_such_module:score", "ModuleNotFoundError: No module named 'no_such_module'"),
            ("reward_broken:one", "RuntimeError: no licence for this module"),
            ("reward_functions:missing", "AttributeError: module 'reward_functions' has no attribute 'missing'"),
            ("reward_functions:number", "TypeError: number is int, not a function"),
            (
                "reward_functions:narrow",
                "TypeError: narrow(answer: str) -> float cannot be called as narrow(response, truth, prompt=...): "
                "too many positional arguments",
            ),
            ("reward_exiting:one", "its import ends with 5"),
        ],
    )
    def test_a_reward_that_cannot_be_imported(
        self, good: DAPOJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, reason: str
    ) -> None:
        monkeypatch.setenv("PYTHONPATH", str(FAKES))
        custom = local_job(tmp_path, reward={"type": "custom", "module": module})
        assert refused(lambda: check_job(custom), SpecError) == (
            f"spec.reward.module is {module}, which cannot be imported ({reason}): "
            "fix the module, or add its folder to PYTHONPATH."
        )

    def test_a_reward_whose_import_hangs(self, good: DAPOJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PYTHONPATH", str(FAKES))
        monkeypatch.setattr("dapo_trainer.preflight.START_SECONDS", 0.3)
        custom = local_job(tmp_path, reward={"type": "custom", "module": "reward_slow:one"})
        assert "its import takes more than 0.3 s" in refused(lambda: check_job(custom), SpecError)

    def test_a_reward_that_can(self, good: DAPOJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PYTHONPATH", str(FAKES))
        check_job(local_job(tmp_path, reward={"type": "custom", "module": "reward_functions:flag"}))


@pytest.mark.engine  # transformers imports torch
class TestFetch:
    """With the demo's real tokenizer: one token a byte, and one before and after each message."""

    @pytest.fixture
    def tokenized(self, good: DAPOJob, tmp_path: Path) -> Path:
        from dapo_trainer.demo.warm_start import tokenizer

        tokenizer().save_pretrained(tmp_path / "model")
        return tmp_path

    def test_files_are_written_as_verl_reads_them(self, good: DAPOJob, tokenized: Path) -> None:
        paths = fetch(good, tokenized / "work", tokenized / "global_step_3")
        assert paths.model == str(tokenized / "model") and paths.resume_from == str(tokenized / "global_step_3")
        [train], [validation] = paths.train, paths.validation
        assert parquet.read_table(train).to_pylist()[0]["data_source"] == "train"
        assert parquet.read_table(validation).to_pylist()[0]["data_source"] == "aime"

    def test_b9_a_step_of_more_prompts_than_there_are(self, good: DAPOJob, tokenized: Path) -> None:
        larger = local_job(tokenized, batch={"prompts": 2})
        assert "has only 1 prompts" in refused(lambda: fetch(larger, tokenized / "work", None), SpecError)

    def test_a_prompt_over_its_limit(self, good: DAPOJob, tokenized: Path) -> None:
        saved(tokenized / "train.parquet", [row("x" * 10), row("x" * 11)])
        message = refused(lambda: fetch(good, tokenized / "work", None))
        assert "row 1, column prompt: 13 tokens, over spec.data.maxPromptTokens (12)" in message
        assert "row 0" not in message
        shutil.rmtree(tokenized / "work", ignore_errors=True)
