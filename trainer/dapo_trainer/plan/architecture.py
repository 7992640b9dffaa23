"""A model's architecture, from its config.json or by its name, and the sizes that follow from it.

Models whose config.json need not be at hand are those of the Qwen2.5, Qwen3 and Llama 3 families, with the numbers of
LitGPT's table (`litgpt/config.py`), which names the config.json of each. Of contexts that it does not tell apart, the
least is taken that another source names, as the comments say.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final


@dataclass(frozen=True)
class Architecture:
    """A dense decoder as Qwen2, Qwen3 and Llama are: gated MLP, grouped-query attention."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    tied: bool = False  # the output head is the embedding
    qkv_bias: bool = False
    qk_norm: bool = False

    @property
    def layer_parameters(self) -> int:
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        attention = self.hidden * (queries + 2 * keys) + queries * self.hidden
        extras = (queries + 2 * keys if self.qkv_bias else 0) + (2 * self.head_dim if self.qk_norm else 0)
        return attention + extras + 3 * self.hidden * self.intermediate + 2 * self.hidden

    @property
    def embedding_parameters(self) -> int:
        """Of the embedding; an untied output head has as many again."""
        return self.vocabulary * self.hidden

    @property
    def parameters(self) -> int:
        embeddings = self.embedding_parameters * (1 if self.tied else 2)
        return self.layers * self.layer_parameters + embeddings + self.hidden

    def kv_bytes(self, tensor_parallel: int = 1, element_bytes: int = 2) -> int:
        """Of the KV cache: one token on one GPU of an engine. With more GPUs than heads, heads are duplicated."""
        heads = max(1, -(-self.kv_heads // tensor_parallel))
        return 2 * self.layers * heads * self.head_dim * element_bytes


# Model types that the formulas above describe.
_DENSE: Final[Mapping[str, Mapping[str, bool]]] = {
    "qwen2": {"qkv_bias": True},
    "qwen3": {"qk_norm": True},
    "llama": {},
    "mistral": {},
}


def config_json(model: Architecture, context: int) -> dict[str, Any]:
    """A config.json from which transformers and vLLM build the model's layers: what `of_config` reads, written."""
    kind, name = ("qwen2", "Qwen2") if model.qkv_bias else ("qwen3", "Qwen3") if model.qk_norm else ("llama", "Llama")
    return {
        "architectures": [f"{name}ForCausalLM"],
        "model_type": kind,
        "hidden_size": model.hidden,
        "intermediate_size": model.intermediate,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads,
        "head_dim": model.head_dim,
        "vocab_size": model.vocabulary,
        "tie_word_embeddings": model.tied,
        "max_position_embeddings": context,
        "dtype": "bfloat16",
    }


def of_config(config: Mapping[str, Any]) -> Architecture | None:
    """The architecture in a config.json; None for one that the formulas do not describe (say, mixture of experts)."""
    kind = str(config.get("model_type"))
    if kind not in _DENSE:
        return None
    heads, hidden = int(config["num_attention_heads"]), int(config["hidden_size"])
    return Architecture(
        layers=int(config["num_hidden_layers"]),
        hidden=hidden,
        intermediate=int(config["intermediate_size"]),
        heads=heads,
        kv_heads=int(config.get("num_key_value_heads") or heads),
        head_dim=int(config.get("head_dim") or hidden // heads),
        vocabulary=int(config["vocab_size"]),
        tied=bool(config.get("tie_word_embeddings", False)),
        **_DENSE[kind],
    )


def of_folder(folder: Path) -> Architecture | None:
    """The architecture of a model's folder; None when config.json is missing or unreadable, or of an unknown type."""
    try:
        return of_config(json.loads((folder / "config.json").read_text()))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _qwen(layers: int, hidden: int, intermediate: int, heads: int, kv_heads: int, **more: Any) -> Architecture:
    base: dict[str, Any] = {"head_dim": 128, "vocabulary": 152_064, "qkv_bias": True}
    return Architecture(layers, hidden, intermediate, heads, kv_heads, **base | more)


# Names without owner and without -Base, -Instruct and the like.
KNOWN: Final[Mapping[str, Architecture]] = {
    "Qwen2.5-0.5B": _qwen(24, 896, 4864, 14, 2, head_dim=64, vocabulary=151_936, tied=True),
    "Qwen2.5-1.5B": _qwen(28, 1536, 8960, 12, 2, vocabulary=151_936, tied=True),
    "Qwen2.5-3B": _qwen(36, 2048, 11_008, 16, 2, vocabulary=151_936, tied=True),
    "Qwen2.5-7B": _qwen(28, 3584, 18_944, 28, 4),
    "Qwen2.5-14B": _qwen(48, 5120, 13_824, 40, 8),
    "Qwen2.5-32B": _qwen(64, 5120, 27_648, 40, 8),
    "Qwen2.5-72B": _qwen(80, 8192, 29_568, 64, 8),
    "Qwen3-0.6B": _qwen(28, 1024, 3072, 16, 8, vocabulary=151_936, tied=True, qkv_bias=False, qk_norm=True),
    "Qwen3-1.7B": _qwen(28, 2048, 6144, 16, 8, vocabulary=151_936, tied=True, qkv_bias=False, qk_norm=True),
    "Qwen3-4B": _qwen(36, 2560, 9728, 32, 8, vocabulary=151_936, tied=True, qkv_bias=False, qk_norm=True),
    "Qwen3-8B": _qwen(36, 4096, 12_288, 32, 8, vocabulary=151_936, qkv_bias=False, qk_norm=True),
    "Qwen3-14B": _qwen(40, 5120, 17_408, 40, 8, vocabulary=151_936, qkv_bias=False, qk_norm=True),
    "Qwen3-32B": _qwen(64, 5120, 25_600, 64, 8, vocabulary=151_936, qkv_bias=False, qk_norm=True),
    "Llama-3.1-8B": Architecture(32, 4096, 14_336, 32, 8, 128, 128_256),
    "Llama-3.1-70B": Architecture(80, 8192, 28_672, 64, 8, 128, 128_256),
    "Llama-3.2-1B": Architecture(16, 2048, 8192, 32, 8, 64, 128_256, tied=True),
    "Llama-3.2-3B": Architecture(28, 3072, 8192, 24, 8, 128, 128_256, tied=True),
}
_SUFFIXES: Final = ("-Base", "-Instruct", "-Math")
# Tokens of prompt and response together (max_position_embeddings), by the start and the end of a name; the first that
# fits.
_CONTEXTS: Final = (
    ("Qwen2.5-Math-", "", 4096),
    # As vLLM refuses more for Qwen2.5-72B-Instruct.
    ("Qwen2.5-", "-Instruct", 32_768),
    ("Qwen2.5-0.5B", "", 32_768),
    ("Qwen2.5-3B", "", 32_768),
    ("Qwen2.5-", "", 131_072),
    # Trained on sequences of 32,768; the config.json of a base model was not at hand.
    ("Qwen3-", "-Base", 32_768),
    ("Qwen3-", "", 40_960),
    ("Llama-3", "", 131_072),
)


def _name(source: str) -> str:
    return source.rstrip("/").rpartition("/")[2]


def known(source: str) -> Architecture | None:
    """The architecture of a hub model in the table, by `hf://owner/name`; None for any other."""
    name = _name(source)
    for suffix in _SUFFIXES:
        name = name.replace(suffix, "")
    return KNOWN.get(name)


def known_context(source: str) -> int | None:
    """The context in tokens of a hub model in the table; None for any other."""
    name = _name(source)
    if known(source) is None:
        return None
    return next((tokens for start, end, tokens in _CONTEXTS if name.startswith(start) and name.endswith(end)), None)
