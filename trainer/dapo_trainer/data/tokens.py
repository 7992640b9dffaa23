"""Prompts counted in the tokens of a model, as the rollout will see them: with its chat template."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from dapo_core.errors import ModelError
from dapo_trainer.data.sources import local_path, model_folder

# Of a hub repository: all but the weights, which nobody needs to count tokens.
TOKENIZER_FILES = ("*.json", "*.txt", "*.model", "*.jinja")
AT_A_TIME = 256  # offsets and masks come with the tokens, and take far more memory
Messages = Sequence[Any]
Counter = Callable[[Sequence[Messages]], list[int]]
_GREETING = [{"role": "user", "content": "1+1?"}]


def tokenizer_folder(source: str, field: str) -> Path:
    """A folder with a model's tokenizer, by path or URI. Raises ModelError naming `field`."""
    scheme, found, rest = source.partition("://")
    if not found or scheme == "file":
        return local_path(source) if found else Path(source)
    if scheme != "hf":
        return model_folder(source)
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(rest, allow_patterns=list(TOKENIZER_FILES)))
    except Exception as error:  # the hub's client raises OSError, HTTP and validation errors alike
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise ModelError(f"{field} {source} could not be downloaded: {reason}") from error


def token_counter(folder: Path, field: str = "spec.model.source") -> Counter:
    """Lengths in tokens of conversations. Raises ModelError when `folder` has no tokenizer with a chat template."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(folder)
        tokenizer.apply_chat_template(_GREETING, add_generation_prompt=True, return_dict=False)
    except Exception as error:  # a missing file, a broken one or no chat template: each is an error of its own kind
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise ModelError(
            f"{field}: {folder} has no tokenizer with a chat template ({reason}): add its tokenizer files."
        ) from error

    def count(conversations: Sequence[Messages]) -> list[int]:
        lengths: list[int] = []
        for first in range(0, len(conversations), AT_A_TIME):
            ids = tokenizer.apply_chat_template(
                list(conversations[first : first + AT_A_TIME]),
                add_generation_prompt=True,
                return_dict=False,
                tokenizer_kwargs={"verbose": False},  # of the model's own limit, which is not the one that is asked for
            )
            lengths += [len(one) for one in ids]
        return lengths

    return count
