"""Folders of models: what is torn or missing is found before anything starts; the largest tensor."""

import os
import re
from collections.abc import Callable
from pathlib import Path

import numpy
import pytest
from prompt_rows import model, refused
from safetensors.numpy import save_file

from dapo_core.errors import ModelError
from dapo_trainer.data.model_files import check_model, largest_tensor_bytes


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
