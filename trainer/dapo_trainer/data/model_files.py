"""A model's folder looked over before anything loads it: a torn download ends in a sentence, not in a worker's log."""

import json
from pathlib import Path
from typing import Any

from dapo_core.errors import ModelError

INDEX = "model.safetensors.index.json"


def check_model(folder: Path) -> None:
    """Raises ModelError when config.json does not parse or a weight file is missing or cut off; reads headers only."""
    config = _mapping(folder / "config.json")
    if "model_type" not in config:
        raise ModelError(f"spec.model.source: {folder / 'config.json'} names no model_type: {_AGAIN}")
    files = sorted(folder.glob("*.safetensors"))
    for name in _indexed(folder):
        if not (folder / name).is_file():
            raise ModelError(f"spec.model.source: {folder / name} is missing, but {INDEX} names it: {_AGAIN}")
    if not files and not any(folder.glob("*.bin")):
        raise ModelError(f"spec.model.source: {folder} has no weights (*.safetensors or *.bin): {_AGAIN}")
    for file in files:
        _check_header(file)


_AGAIN = "copy or download the model again."


def _mapping(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise ModelError(f"spec.model.source: {file} cannot be read ({error}): {_AGAIN}") from error
    if not isinstance(content, dict):
        raise ModelError(f"spec.model.source: {file} holds no mapping: {_AGAIN}")
    return content


def _indexed(folder: Path) -> list[str]:
    """The shards that a model of several files names."""
    if not (folder / INDEX).is_file():
        return []
    shards = _mapping(folder / INDEX).get("weight_map")
    return sorted({str(name) for name in shards.values()}) if isinstance(shards, dict) else []


def _check_header(file: Path) -> None:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="np"):
            pass
    except (OSError, SafetensorError) as error:
        raise ModelError(f"spec.model.source: {file} is not whole ({error}): {_AGAIN}") from error
