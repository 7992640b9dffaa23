"""`dapo data prepare` as it is called: names, options, and sources on this machine, in a bucket and on a hub."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from patience import patient
from published_data import row, saved
from pyarrow import parquet
from typer.testing import CliRunner

from dapo_core.cli import main
from dapo_core.errors import DataError, SpecError
from dapo_core.objectstore import open_store
from dapo_trainer.data.prompt_files import PromptFile, check
from dapo_trainer.data.sources import data_file


class TestCommand:
    def run(self, *arguments: str | Path) -> Any:
        return CliRunner().invoke(main.app, ["data", "prepare", *map(str, arguments)])

    def test_aime_as_published_becomes_thirty_problems(self, tmp_path: Path) -> None:
        source = saved(tmp_path / "s.parquet", [row(f"{i}?", str(i)) for i in range(30)] * 32)
        result = self.run("aime-2024", "--source", source.path, "--out", tmp_path / "a.parquet")
        assert result.exit_code == 0, result.output
        assert "30  distinct prompts, 32x each" in result.output
        assert "for validation, set samplesPerPrompt: 32." in result.output
        report = json.loads((tmp_path / "a.report.json").read_text())
        assert (report["rows"], report["kept"], report["copies"]) == (960, 30, {"fewest": 32, "most": 32})
        assert report["sha256"] == sha256((tmp_path / "a.parquet").read_bytes()).hexdigest()

    @pytest.mark.parametrize(
        ("name", "more", "kept"),
        [
            pytest.param("dapo-math-17k", (), 1, id="integers for the paper's data"),
            pytest.param("dapo-math-17k", ("--answers", "any"), 2, id="unless told otherwise"),
            pytest.param("mine", (), 2, id="any answer for other data"),
            pytest.param("mine", ("--answers", "integer"), 1, id="unless told otherwise, too"),
        ],
    )
    def test_which_answers_are_kept(self, tmp_path: Path, name: str, more: tuple[str, ...], kept: int) -> None:
        source = saved(tmp_path / "s.jsonl", [row(), row("2?", "1/2")])
        assert self.run(name, "--source", source.path, "--out", tmp_path / "a.parquet", *more).exit_code == 0
        assert parquet.read_metadata(tmp_path / "a.parquet").num_rows == kept

    def test_every_mistake_is_told_at_once(self, tmp_path: Path) -> None:
        result = self.run("mine", "--out", "a.csv", "--max-prompt-tokens", "5", "--template", "no hole")
        assert isinstance(result.exception, SpecError)
        assert [problem.message for problem in result.exception.problems] == [
            "--source is missing: only dapo-math-17k and aime-2024 have a default, mine has none.",
            "--out is a.csv: use a file name that ends in .parquet.",
            "--max-prompt-tokens is 5, but there is no tokenizer to count with: add --model.",
            "--template is 'no hole': use paper, or a text that contains {prompt}.",
        ]

    def test_where_conflicts_are_listed(self, tmp_path: Path) -> None:
        source = saved(tmp_path / "s.jsonl", [row("1?"), row("1?", "7"), row("2?")])
        result = self.run("mine", "--source", source.path, "--out", tmp_path / "a.parquet")
        assert f"{tmp_path / 'a.conflicts.jsonl'} lists the prompts with different answers." in result.output
        assert json.loads((tmp_path / "a.conflicts.jsonl").read_text()) == {"prompt": "1?", "answers": {"2": 1, "7": 1}}

    def test_a_source_that_is_not_there(self, tmp_path: Path) -> None:
        result = self.run("mine", "--source", tmp_path / "a.parquet", "--out", tmp_path / "b.parquet")
        assert isinstance(result.exception, DataError)
        assert str(result.exception).startswith("--source file:///") and "does not exist" in str(result.exception)


@contextmanager
def hub(files: dict[str, bytes]) -> Iterator[str]:
    """The two requests of a hub that a download makes, by path; counts what was asked for."""

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self._answer(body=False)

        def do_GET(self) -> None:
            self._answer(body=True)

        def _answer(self, body: bool) -> None:
            content = files.get(self.path)
            self.send_response(404 if content is None else 200)
            self.send_header("Content-Length", str(len(content or b"")))
            self.send_header("ETag", f'"{sha256(content or b"").hexdigest()}"')
            self.send_header("X-Repo-Commit", "0" * 40)
            if content is None:
                self.send_header("X-Error-Code", "EntryNotFound")
            self.end_headers()
            if body and content:
                self.wfile.write(content)

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def test_a_data_set_of_the_hub(tmp_path: Path) -> None:
    """The hub's real client against a server on this machine: the published source, and one that is not there."""
    saved(tmp_path / "s.parquet", [row(), row()])
    place = "/datasets/BytedTsinghua-SIA/DAPO-Math-17k/resolve/main/data/dapo-math-17k.parquet"
    with hub({place: (tmp_path / "s.parquet").read_bytes()}) as endpoint:
        environment = os.environ | {"HF_ENDPOINT": endpoint, "HF_HOME": str(tmp_path / "hf"), "NO_PROXY": "127.0.0.1"}
        dapo = Path(sys.executable).with_name("dapo")

        def run(*arguments: str) -> subprocess.CompletedProcess[str]:
            whole = [str(dapo), "data", "prepare", "dapo-math-17k", "--out", str(tmp_path / "a.parquet"), *arguments]
            return subprocess.run(whole, env=environment, capture_output=True, text=True, timeout=patient(120))

        found = run()
        assert found.returncode == 0, found.stderr
        missing = run("--source", "hf://datasets/a/b/none.parquet")
    assert "1  distinct prompts, 2x each" in found.stdout
    assert missing.returncode == 2 and "Traceback" not in missing.stderr
    assert "error: --source hf://datasets/a/b/none.parquet could not be downloaded:" in missing.stderr


class TestBucket:
    """Sources in S3, on a real server."""

    @pytest.fixture
    def bucket(self, s3: tuple[str, Mapping[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
        """The URL of a prefix that holds a set to train on, and one to validate on that shares a prompt with it."""
        url, keys = s3
        for name, value in {**keys, "XDG_CACHE_HOME": str(tmp_path / "cache")}.items():
            monkeypatch.setenv(name, value)
        store = open_store(url)
        for name, rows in {"train": [row("1+1?"), row("1+1?"), row("2+2?", "4")], "held-out": [row("1 + 1?")]}.items():
            store.put_bytes(f"{name}.parquet", saved(tmp_path / f"{name}.parquet", rows).path.read_bytes())
        return url

    def at(self, bucket: str, name: str) -> str:
        place, mark, query = bucket.partition("?")
        return f"{place}/{name}{mark}{query}"

    def test_a_source_is_prepared_and_held_against_validation(self, bucket: str, tmp_path: Path) -> None:
        train, held_out = self.at(bucket, "train.parquet"), self.at(bucket, "held-out.parquet")
        options = ["data", "prepare", "mine", "--source", train, "--out", str(tmp_path / "a.parquet")]
        result = CliRunner().invoke(main.app, options)
        assert result.exit_code == 0, result.output
        assert "2  distinct prompts, 1 to 2x each" in result.output
        refused = CliRunner().invoke(main.app, [*options, "--validation", held_out])
        assert isinstance(refused.exception, DataError)
        assert f"1 of the 1 prompts of {held_out} (0 exactly)" in str(refused.exception)

    def test_a_trainer_reads_it_row_by_row(self, bucket: str, tmp_path: Path) -> None:
        open_store(bucket).put_bytes(
            "bad.parquet", saved(tmp_path / "bad.parquet", [row(), row(answer="{")]).path.read_bytes()
        )
        field = "spec.data.train[0].source"
        assert len(check(PromptFile(field, "train", data_file(self.at(bucket, "train.parquet"), field)), "math")) == 3
        bad = PromptFile(field, "train", data_file(self.at(bucket, "bad.parquet"), field))
        with pytest.raises(DataError, match=r"bad\.parquet: row 1, column .*ground_truth: '{' has unbalanced braces"):
            check(bad, "math")

    def test_one_that_is_not_there(self, bucket: str) -> None:
        gone = self.at(bucket, "gone.parquet")
        with pytest.raises(DataError, match=r"^--source s3://.* cannot be read: s3://.*gone\.parquet.* was not found"):
            data_file(gone, "--source")
