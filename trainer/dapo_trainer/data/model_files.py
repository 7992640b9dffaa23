"""A model's files without the engines: checked before anything loads them, and its tokenizer, which counts prompts.

An incomplete download ends in one sentence then, not in a worker's log.
"""

import json
from collections.abc import Callable, Sequence
from math import prod
from pathlib import Path
from typing import Any, Final

from dapo_core.errors import ModelError, first_line
from dapo_core.jobspec import DAPOJobSpec
from dapo_trainer.data.sources import TOKENIZER_FILES, local_path, model_folder

INDEX: Final = "model.safetensors.index.json"
CHUNK_CONVERSATIONS: Final = 256  # offsets and masks come with the tokens, and take far more memory
Messages = Sequence[Any]
TokenCounter = Callable[[Sequence[Messages]], list[int]]
"""Lengths of conversations in tokens, with the chat template, as the rollout will see them."""
_GREETING: Final = [{"role": "user", "content": "1+1?"}]
_AGAIN: Final = "copy or download the model again."


def check_model(folder: Path) -> None:
    """Raises ModelError when config.json is invalid or a weight file is missing or truncated; reads headers only."""
    check_config(folder)
    files = sorted(folder.glob("*.safetensors"))
    for name in _indexed(folder):
        if not (folder / name).is_file():
            raise ModelError(f"spec.model.source: {folder / name} is missing, but {INDEX} lists it: {_AGAIN}")
    if not files and not any(folder.glob("*.bin")):
        raise ModelError(f"spec.model.source: {folder} has no weights (*.safetensors or *.bin): {_AGAIN}")
    for file in files:
        _check_header(file)


def check_config(folder: Path) -> None:
    """Raises ModelError when config.json is missing or does not say what the model is."""
    if "model_type" not in _mapping(folder / "config.json"):
        raise ModelError(f"spec.model.source: {folder / 'config.json'} has no model_type: {_AGAIN}")


def context(folder: Path) -> int | None:
    """The most tokens of prompt and response together that the model in `folder` takes; None where its config.json does
    not say, or extends the number by scaled positions. Raises ModelError when the file cannot be read."""
    config = _mapping(folder / "config.json")
    rope = config.get("rope_scaling") or config.get("rope_parameters") or {}
    scaled = (rope.get("rope_type") or rope.get("type") or "default") != "default"
    tokens = config.get("max_position_embeddings")
    return tokens if isinstance(tokens, int) and not scaled else None


def beyond_context(spec: DAPOJobSpec, most: int | None) -> str | None:
    """What is wrong when prompt and response together can be longer than the model's context of `most` tokens; None
    where they cannot, or it is not known."""
    prompt, response = spec.data.max_prompt_tokens, spec.batch.max_response_tokens
    if most is None or prompt + response <= most:
        return None
    return (
        f"spec.batch.maxResponseTokens is {response} and spec.data.maxPromptTokens is {prompt}, together more than "
        f"the model's context of {most} tokens: lower them so that their sum is at most that."
    )


def _mapping(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise ModelError(f"spec.model.source: {file} cannot be read ({error}): {_AGAIN}") from error
    if not isinstance(content, dict):
        raise ModelError(f"spec.model.source: {file} is not a mapping: {_AGAIN}")
    return content


def _indexed(folder: Path) -> list[str]:
    """The shards that the index of a sharded model lists."""
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
        raise ModelError(f"spec.model.source: {file} is incomplete ({error}): {_AGAIN}") from error


def largest_tensor_bytes(folder: Path) -> int:
    """Of the model's tensors, in float32 as the trainer sends them; of its embedding where headers cannot be read.

    Raises ModelError when config.json is invalid.
    """
    from safetensors import safe_open

    sizes = []
    for file in folder.glob("*.safetensors"):
        with safe_open(file, framework="np") as tensors:
            sizes += [prod(tensors.get_slice(name).get_shape()) for name in tensors.keys()]
    if not sizes:
        config = _mapping(folder / "config.json")
        sizes = [int(config.get("vocab_size") or 0) * int(config.get("hidden_size") or 0)]
    return 4 * int(max(sizes))


def tokenizer_folder(source: str, field: str) -> Path:
    """A folder with a model's tokenizer, by path or URI. Raises ModelError naming `field`."""
    scheme, separator, rest = source.partition("://")
    if not separator or scheme == "file":
        return local_path(source) if separator else Path(source)
    if scheme != "hf":
        return model_folder(source)
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(rest, allow_patterns=list(TOKENIZER_FILES)))
    except Exception as error:  # the hub's client raises OSError, HTTP and validation errors alike
        raise ModelError(f"{field} {source} could not be downloaded: {first_line(error)}") from error


def token_counter(folder: Path, field: str = "spec.model.source") -> TokenCounter:
    """A counter for the model in `folder`. Raises ModelError when it has no tokenizer with a chat template."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(folder)
        tokenizer.apply_chat_template(_GREETING, add_generation_prompt=True, return_dict=False)
    except Exception as error:  # a missing file, a corrupt one and no chat template raise different errors
        raise ModelError(
            f"{field}: {folder} has no tokenizer with a chat template ({first_line(error)}): add its tokenizer files."
        ) from error

    def count(conversations: Sequence[Messages]) -> list[int]:
        lengths: list[int] = []
        for first in range(0, len(conversations), CHUNK_CONVERSATIONS):
            ids = tokenizer.apply_chat_template(
                list(conversations[first : first + CHUNK_CONVERSATIONS]),
                add_generation_prompt=True,
                return_dict=False,
                tokenizer_kwargs={"verbose": False},  # about the model's own limit, which is not the one asked for
            )
            lengths += [len(tokens) for tokens in ids]
        return lengths

    return count
