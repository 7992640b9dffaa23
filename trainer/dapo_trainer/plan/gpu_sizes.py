"""Sizes that verl leaves at one default for all models and GPUs, derived from the job, the model and the GPU. Pure.

verl's 256 sequences for an engine halve the occupancy of a small model, and half of a GPU for vLLM wastes the other
half where rollouts have GPUs to themselves. What `verlOverrides` sets is kept.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from omegaconf import DictConfig, OmegaConf

from dapo_core.jobspec import DAPOJobSpec
from dapo_core.jobspec.leaves import leaves
from dapo_core.quantity import GIB
from dapo_trainer.plan.architecture import Architecture
from dapo_trainer.plan.memory import GpuKind, MemorySettings, generation_memory, training_memory

ROLLOUT: Final = "actor_rollout_ref.rollout."
UTILIZATION: Final = f"{ROLLOUT}gpu_memory_utilization"
SEQUENCES: Final = f"{ROLLOUT}max_num_seqs"
BATCHED_TOKENS: Final = f"{ROLLOUT}max_num_batched_tokens"
MICRO_BATCH: Final = "actor_rollout_ref.actor.ppo_max_token_len_per_gpu"

# vLLM's share of a GPU that is its own: the rest is CUDA's context and the buffers in which weights arrive.
OWN_UTILIZATION: Final = 0.9
# Of a shared GPU it takes what the trainer's state leaves, less this for fragments of both allocators.
SHARED_MARGIN: Final = 4 * GIB
SHARED_UTILIZATION: Final = (0.3, 0.85)
MOST_SEQUENCES: Final = 1024
LEAST_SEQUENCES: Final = 16
# A chunk of prompts besides the sequences that generate: more hides launches, and takes memory for activations.
CHUNK_TOKENS: Final = 8192
LARGE_CHUNK_TOKENS: Final = 16_384
LARGE_GPU: Final = 70 * GIB
# Of a GPU, what a pass of training may fill.
TRAINING_SHARE: Final = 0.85
MOST_TOKENS: Final = 65_536
TOKEN_STEP: Final = 1024


@dataclass(frozen=True)
class Size:
    """A value for a key of verl, and why."""

    key: str
    value: int | float
    why: str


def gpu_sizes(
    spec: DAPOJobSpec, config: Any, model: Architecture | None, gpu: GpuKind | None, given: frozenset[str] = frozenset()
) -> list[Size]:
    """`config`: composed for CUDA; `model`, `gpu`: None where unknown; `given`: keys that the job itself sets."""
    settings = MemorySettings.of(spec, config)
    sizes = list(_utilization(spec, settings, model, gpu))
    if sizes and UTILIZATION not in given:
        settings = replace(settings, utilization=float(sizes[0].value))
    sequences = _sequences(spec, settings, model, gpu)
    sizes += [sequences, _chunk(sequences, gpu)]
    sizes += _micro_batch(spec, settings, model, gpu)
    return [size for size in sizes if size.key not in given]


def _utilization(
    spec: DAPOJobSpec, settings: MemorySettings, model: Architecture | None, gpu: GpuKind | None
) -> Iterator[Size]:
    if not settings.colocated:
        yield Size(UTILIZATION, OWN_UTILIZATION, "rollouts have their GPUs to themselves")
        return
    if model is None or gpu is None:
        return  # verl's half
    resident = generation_memory(model, settings, training_memory(model, settings, _longest(spec)), gpu).resident
    least, most = SHARED_UTILIZATION
    share = min(most, max(least, (gpu.memory - resident - SHARED_MARGIN) / gpu.memory))
    kept = f"the trainer keeps {resident / GIB:.1f} of {gpu.memory / GIB:.1f} GiB while vLLM generates"
    yield Size(UTILIZATION, int(share * 100) / 100, kept)


def _sequences(spec: DAPOJobSpec, settings: MemorySettings, model: Architecture | None, gpu: GpuKind | None) -> Size:
    """As many as one wave of prompts gives an engine, if their KV cache fits at half of the longest prompt and
    response: most end earlier, and vLLM computes a few again if they do not."""
    engines, batch = spec.topology.layout.engines, spec.batch
    waves = 2 if spec.algorithm.dynamic_sampling.enabled else 1
    wave = waves * batch.prompts * batch.responses_per_prompt
    wanted = min(MOST_SEQUENCES, _rounded(-(-wave // engines)))
    why = f"{wave:,} responses are generated at once by {engines} engine{'s' if engines > 1 else ''}"
    if model is None or gpu is None:
        return Size(SEQUENCES, wanted, why)
    tokens = generation_memory(model, settings, training_memory(model, settings, _longest(spec)), gpu).tokens
    fitting = max(LEAST_SEQUENCES, 2 * tokens // _longest(spec) // 16 * 16)
    if fitting < wanted:
        return Size(SEQUENCES, fitting, f"the KV cache of {tokens:,} tokens holds that many at half of their limits")
    return Size(SEQUENCES, wanted, why)


def _chunk(sequences: Size, gpu: GpuKind | None) -> Size:
    """Prefill is chunked (verl's default), so a long prompt does not hold up the responses that are generated."""
    large = gpu is not None and gpu.memory >= LARGE_GPU
    tokens = max(LARGE_CHUNK_TOKENS if large else CHUNK_TOKENS, int(sequences.value))
    size = f"a GPU of {gpu.memory / GIB:.0f} GiB" if gpu is not None else "a GPU of unknown size"
    return Size(BATCHED_TOKENS, tokens, f"a chunk of prompts beside {sequences.value} sequences, on {size}")


def _micro_batch(
    spec: DAPOJobSpec, settings: MemorySettings, model: Architecture | None, gpu: GpuKind | None
) -> Iterator[Size]:
    """The most tokens whose activations fit beside weights, gradients and optimizer; at least the longest response."""
    if model is None or gpu is None:
        return
    longest = _longest(spec)
    least = -(-longest // settings.sequence_parallel // TOKEN_STEP) * TOKEN_STEP
    # More than a rank has in a mini-batch would only be padding.
    rows = max(1, spec.batch.mini_batch_responses * settings.sequence_parallel // spec.topology.layout.fsdp_ranks)
    most = max(least, min(MOST_TOKENS, rows * longest // settings.sequence_parallel))
    tokens = least
    while tokens + TOKEN_STEP <= most and _fits(model, settings, tokens + TOKEN_STEP, longest, gpu):
        tokens += TOKEN_STEP
    total = training_memory(model, replace(settings, tokens_per_gpu=tokens), longest).total
    why = f"a pass takes {total / GIB:.1f} of {gpu.memory / GIB:.1f} GiB"
    if tokens == least:
        why = f"the longest prompt and response, {longest:,} tokens over {settings.sequence_parallel} GPU(s); {why}"
    yield Size(MICRO_BATCH, tokens, why)


def _fits(model: Architecture, settings: MemorySettings, tokens: int, longest: int, gpu: GpuKind) -> bool:
    total = training_memory(model, replace(settings, tokens_per_gpu=tokens), longest).total
    return total <= TRAINING_SHARE * gpu.memory


def _longest(spec: DAPOJobSpec) -> int:
    return spec.data.max_prompt_tokens + spec.batch.max_response_tokens


def _rounded(count: int) -> int:
    """Up to a multiple of 16, of which vLLM captures CUDA graphs."""
    return max(LEAST_SEQUENCES, -(-count // 16) * 16)


def set_sizes(config: DictConfig, spec: DAPOJobSpec, model: Architecture | None, gpu: GpuKind | None) -> list[Size]:
    """Put the derived sizes into a configuration that was composed for CUDA. Returns them."""
    given = frozenset(key for key, _ in leaves(spec.verl_overrides, into_lists=False))
    sizes = gpu_sizes(spec, config, model, gpu, given)
    for size in sizes:
        OmegaConf.update(config, size.key, size.value)
    return sizes
