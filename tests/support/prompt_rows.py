"""Prompt files, a model's folder, and the one sentence that refuses them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pyarrow
import pytest
from pyarrow import parquet
from safetensors.numpy import save_file

from dapo_core.errors import DapoError, DataError
from dapo_trainer.data.prompt_files import PromptFile

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


def model(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text('{"model_type": "qwen2"}')
    save_file({"w": numpy.zeros((64, 64), numpy.float32)}, folder / "model.safetensors")
    return folder
