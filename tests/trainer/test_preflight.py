"""What a job names is refused before anything starts: one sentence with file, row, column and remedy."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from builders import job
from prompt_rows import model, refused, row, saved
from pyarrow import parquet

from dapo_core.errors import ModelError, SpecError
from dapo_core.jobspec import DAPOJob
from dapo_trainer.data.sources import data_file, local_path, model_folder
from dapo_trainer.preflight import check as check_job
from dapo_trainer.preflight import fetch

FAKES = Path(__file__).parent / "fakes"


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
        os.truncate(tmp_path / "model" / "model.safetensors", 9000)
        refused(lambda: check_job(good), ModelError)
        refused(lambda: fetch(good, tmp_path / "work"), ModelError)

    @pytest.mark.engine  # transformers imports torch
    def test_a_model_without_a_tokenizer(self, good: DAPOJob, tmp_path: Path) -> None:
        message = refused(lambda: fetch(good, tmp_path / "work"), ModelError)
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
        paths = fetch(good, tokenized / "work")
        assert paths.model == str(tokenized / "model")
        [train], [validation] = paths.train, paths.validation
        assert parquet.read_table(train).to_pylist()[0]["data_source"] == "train"
        assert parquet.read_table(validation).to_pylist()[0]["data_source"] == "aime"

    def test_b9_a_step_of_more_prompts_than_there_are(self, good: DAPOJob, tokenized: Path) -> None:
        larger = local_job(tokenized, batch={"prompts": 2})
        assert "has only 1 prompts" in refused(lambda: fetch(larger, tokenized / "work"), SpecError)

    def test_a_prompt_over_its_limit(self, good: DAPOJob, tokenized: Path) -> None:
        saved(tokenized / "train.parquet", [row("x" * 10), row("x" * 11)])
        message = refused(lambda: fetch(good, tokenized / "work"))
        assert "row 1, column prompt: 13 tokens, over spec.data.maxPromptTokens (12)" in message
        assert "row 0" not in message
        shutil.rmtree(tokenized / "work", ignore_errors=True)
