"""A model's architecture, from its config.json, and the sizes that follow from it."""

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
