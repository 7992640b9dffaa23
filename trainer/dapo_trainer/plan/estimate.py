"""The memory of a job on GPUs of one kind, and a warning for each thing that cannot fit. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from dapo_core.jobspec import DAPOJobSpec
from dapo_core.quantity import GIB, amount
from dapo_trainer.plan.architecture import Architecture
from dapo_trainer.plan.memory import (
    GenerationMemory,
    GpuKind,
    MemorySettings,
    TrainingMemory,
    generation_memory,
    head_memory,
    offloaded_memory,
    trained_parameters,
    training_memory,
)

# Of a trainer pod's main memory, what Ray, Python and the pinned copies of a batch take, in bytes for each GPU.
_PROCESS = 8 * GIB
# Of a checkpoint: the one that is written, the one that is uploaded, and the one from which the attempt began.
_CHECKPOINTS = 3


@dataclass(frozen=True)
class Estimate:
    """Memory of one GPU, and a sentence with numbers and remedy for each thing that cannot fit."""

    model: Architecture
    gpu: GpuKind
    settings: MemorySettings
    training: TrainingMemory
    generation: GenerationMemory
    warnings: tuple[str, ...]


def estimate(spec: DAPOJobSpec, config: Any, model: Architecture, gpu: GpuKind) -> Estimate:
    """`config`: what `verl_config.compose` made of the spec for CUDA."""
    settings = MemorySettings.of(spec, config)
    training = training_memory(model, settings, spec.data.max_prompt_tokens + spec.batch.max_response_tokens)
    generation = generation_memory(model, settings, training, gpu)
    warnings = (
        *_training(training, settings, gpu),
        *_generation(spec, model, settings, generation, gpu),
        *_main_memory(spec, training, settings),
        *_scratch(spec, model, settings),
        *_head(spec),
    )
    return Estimate(model, gpu, settings, training, generation, warnings)


def gib(count: float) -> str:
    """Bytes as `79.6 GiB`."""
    return f"{count / GIB:,.1f} GiB"


def _training(training: TrainingMemory, settings: MemorySettings, gpu: GpuKind) -> Iterator[str]:
    if training.total <= gpu.memory:
        return
    state = training.weights + training.gradients + training.optimizer
    over = f"Training needs about {gib(training.total)} of a GPU's {gib(gpu.memory)}"
    if state > 0.5 * gpu.memory:
        yield (
            f"{over}, {gib(state)} of it for weights, gradients and optimizer: add GPUs to share them "
            f"(spec.topology.trainer, now {settings.ranks} ranks), or train adapters only with spec.model.lora."
        )
    else:
        yield (
            f"{over}, {gib(training.activations + training.logits)} of it for activations and logits of "
            f"{settings.tokens_per_gpu:,} tokens: lower verlOverrides "
            "actor_rollout_ref.actor.ppo_max_token_len_per_gpu "
            f"with a higher ulysses_sequence_parallel_size (now {settings.sequence_parallel}), "
            "or shorten batch.maxResponseTokens."
        )


def _generation(
    spec: DAPOJobSpec, model: Architecture, settings: MemorySettings, generation: GenerationMemory, gpu: GpuKind
) -> Iterator[str]:
    longest = spec.data.max_prompt_tokens + spec.batch.max_response_tokens
    field = "verlOverrides actor_rollout_ref.rollout.gpu_memory_utilization"
    if generation.kv_cache <= 0:
        yield (
            f"vLLM's share of a GPU, {settings.utilization:.0%} of {gib(gpu.memory)}, does not hold its part of the "
            f"weights ({gib(generation.weights)}): raise spec.topology.rollout.tensorParallel "
            f"(now {settings.tensor_parallel}) or {field}."
        )
    elif generation.tokens < longest:
        yield (
            f"An engine's KV cache of {generation.tokens:,} tokens does not hold one prompt and response of "
            f"{longest:,}: raise spec.topology.rollout.tensorParallel (now {settings.tensor_parallel}) or {field} "
            f"(now {settings.utilization:g})."
        )
    if generation.total > gpu.memory:
        yield (
            f"While vLLM generates, a GPU of {gib(gpu.memory)} would hold {gib(generation.total)}, "
            f"{gib(generation.resident)} of it the trainer's: lower {field} (now {settings.utilization:g}), or set "
            "actor_rollout_ref.actor.fsdp_config.param_offload and optimizer_offload."
        )
    if model.kv_heads % settings.tensor_parallel:
        yield (
            f"spec.topology.rollout.tensorParallel is {settings.tensor_parallel}, which does not divide the model's "
            f"{model.kv_heads} key-value heads: vLLM duplicates some of them, or refuses the configuration."
        )


def _main_memory(spec: DAPOJobSpec, training: TrainingMemory, settings: MemorySettings) -> Iterator[str]:
    pod = spec.topology.trainer
    needed = offloaded_memory(training, settings, pod.gpus_per_pod) + _PROCESS * pod.gpus_per_pod
    needed += float(amount(pod.resources.shm))
    if needed > amount(pod.resources.memory):
        yield (
            f"A trainer pod needs about {gib(needed)} of main memory ({pod.resources.shm} of it /dev/shm), and "
            f"requests {pod.resources.memory}: raise spec.topology.trainer.resources.memory."
        )


def _scratch(spec: DAPOJobSpec, model: Architecture, settings: MemorySettings) -> Iterator[str]:
    pod = spec.topology.trainer
    if pod.scratch is None:
        return
    state = (model.parameters + 2 * trained_parameters(model, settings.lora_rank)) * settings.weight_bytes
    checkpoints = _CHECKPOINTS * state / pod.replicas
    fetched = 0 if spec.topology.model_cache is not None else model.parameters * settings.compute_bytes
    if checkpoints + fetched > amount(pod.scratch.size):
        yield (
            f"A trainer pod may write {gib(checkpoints + fetched)} ({gib(checkpoints)} for its part of {_CHECKPOINTS} "
            f"checkpoints{f', {gib(fetched)} for the model' if fetched else ''}), and has "
            f"{pod.scratch.size} for it: raise spec.topology.trainer.scratch.size."
        )


def _head(spec: DAPOJobSpec) -> Iterator[str]:
    needed, resources = head_memory(spec), spec.topology.head.resources
    if needed.total > amount(resources.memory):
        yield (
            f"The head pod needs up to {gib(needed.total)} of memory ({gib(needed.queue)} for the data queue and "
            f"{gib(needed.computing)} for advantages and metrics, with every response at its limit), and requests "
            f"{resources.memory}: raise spec.topology.head.resources.memory."
        )
