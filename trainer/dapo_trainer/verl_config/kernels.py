"""What the trainer computes attention and log-probs with, and which attention may be spread over ranks."""

from typing import Any, Final

from omegaconf import DictConfig, OmegaConf

from dapo_core.errors import Problem, SpecError
from dapo_trainer.verl_config.placement import Device

# Ours (verl_adapter.attention_varlen), by the name under which transformers knows it.
VARLEN: Final = "dapo_varlen"
# Those in which the ranks of a sequence-parallel group exchange heads for tokens. In any other, each rank attends to
# its own part of a response as if it were whole: nothing fails, and the log-probs are wrong.
SEQUENCE_PARALLEL: Final = (VARLEN, "flash_attention_2", "flash_attention_3", "flash_attention_4")

# Log-probs are computed for so many tokens at a time: their logits are held, not those of a whole response.
LOG_PROB_CHUNK: Final = 1024

ATTENTION_KEY: Final = "actor_rollout_ref.model.override_config.attn_implementation"
_RANKS: Final = (
    "actor_rollout_ref.actor.ulysses_sequence_parallel_size",
    "actor_rollout_ref.actor.fsdp_config.ulysses_sequence_parallel_size",
    "actor_rollout_ref.ref.ulysses_sequence_parallel_size",
)


def attention(device: Device, dtype: str) -> dict[str, Any]:
    """The verl key that names it. CUDA's kernels for packed rows compute in 16 bits only."""
    return {ATTENTION_KEY: "sdpa" if device == "cuda" and dtype == "float32" else VARLEN}


def check_sequence_parallel(config: DictConfig) -> None:
    """`config`: composed. Raises SpecError when a response is spread over ranks whose attention does not span them."""
    name = OmegaConf.select(config, ATTENTION_KEY)
    if name in SEQUENCE_PARALLEL:
        return
    for key in _RANKS:
        if int(OmegaConf.select(config, key) or 1) > 1:
            field = f"spec.verlOverrides.{key}"
            sentence = (
                f"{field} is {OmegaConf.select(config, key)}, but with attention {name} a GPU attends only to its own "
                f"part of a response: set it to 1, or train in bfloat16 on GPUs and leave {ATTENTION_KEY} as it is."
            )
            raise SpecError([Problem(field, sentence)])
