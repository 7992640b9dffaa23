"""What cannot fit, and what would help. Pure."""

from collections.abc import Iterator

from dapo_core.jobspec import DAPOJobSpec
from dapo_trainer.plan.accelerators import GIB, Accelerator
from dapo_trainer.plan.architecture import Architecture
from dapo_trainer.plan.memory import Engine, Generation, Training, in_main_memory

_UNITS = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
# Of a trainer pod's main memory, what Ray, Python and the pinned copies of a batch take, in bytes a GPU.
_PROCESS = 8 * GIB


def quantity(text: str) -> float:
    """A Kubernetes quantity in bytes."""
    unit = next((unit for unit in _UNITS if text.endswith(unit)), "")
    return float(text.removesuffix(unit)) * _UNITS.get(unit, 1)


def gib(count: float) -> str:
    return f"{count / GIB:,.1f} GiB"


def warnings(
    spec: DAPOJobSpec, model: Architecture, engine: Engine, trainer: Training, held: Generation, gpu: Accelerator
) -> Iterator[str]:
    """One sentence for each thing that cannot be, with its numbers and its remedy."""
    yield from _training(trainer, engine, gpu)
    yield from _generation(spec, model, engine, held, gpu)
    yield from _main_memory(spec, trainer, engine)


def _training(trainer: Training, engine: Engine, gpu: Accelerator) -> Iterator[str]:
    if trainer.total <= gpu.memory:
        return
    state = trainer.weights + trainer.gradients + trainer.optimizer
    over = f"Training needs about {gib(trainer.total)} of a GPU's {gib(gpu.memory)}"
    if state > 0.5 * gpu.memory:
        yield (
            f"{over}, {gib(state)} of it for weights, gradients and optimizer: more GPUs "
            f"(spec.topology.trainer, now {engine.ranks} ranks) share them, or spec.model.lora trains less."
        )
    else:
        yield (
            f"{over}, {gib(trainer.activations + trainer.logits)} of it for activations and logits of "
            f"{engine.tokens_per_gpu:,} tokens: lower verlOverrides actor_rollout_ref.actor.ppo_max_token_len_per_gpu "
            f"with a higher ulysses_sequence_parallel_size (now {engine.sequence_parallel}), "
            "or shorten batch.maxResponseTokens."
        )


def _generation(
    spec: DAPOJobSpec, model: Architecture, engine: Engine, held: Generation, gpu: Accelerator
) -> Iterator[str]:
    longest = spec.data.max_prompt_tokens + spec.batch.max_response_tokens
    field = "verlOverrides actor_rollout_ref.rollout.gpu_memory_utilization"
    if held.kv_cache <= 0:
        yield (
            f"vLLM's share of a GPU, {engine.utilization:.0%} of {gib(gpu.memory)}, does not hold its part of the "
            f"weights ({gib(held.weights)}): raise spec.topology.rollout.tensorParallel (now {engine.tensor_parallel}) "
            f"or {field}."
        )
    elif held.tokens < longest:
        yield (
            f"An engine's KV cache of {held.tokens:,} tokens does not hold one prompt and response of {longest:,}: "
            f"raise spec.topology.rollout.tensorParallel (now {engine.tensor_parallel}) or {field} "
            f"(now {engine.utilization:g})."
        )
    if held.total > gpu.memory:
        yield (
            f"While vLLM generates, a GPU of {gib(gpu.memory)} would hold {gib(held.total)}, {gib(held.resident)} "
            f"of it the trainer's: lower {field} (now {engine.utilization:g}), or set "
            "actor_rollout_ref.actor.fsdp_config.param_offload and optimizer_offload."
        )
    if model.kv_heads % engine.tensor_parallel:
        yield (
            f"spec.topology.rollout.tensorParallel is {engine.tensor_parallel}, which does not divide the model's "
            f"{model.kv_heads} key heads: some are kept more than once, or vLLM refuses it."
        )


def _main_memory(spec: DAPOJobSpec, trainer: Training, engine: Engine) -> Iterator[str]:
    pod = spec.topology.trainer
    needed = in_main_memory(trainer, engine, pod.gpus_per_pod) + _PROCESS * pod.gpus_per_pod
    needed += quantity(pod.resources.shm)
    if needed > quantity(pod.resources.memory):
        yield (
            f"A trainer pod needs about {gib(needed)} of main memory ({pod.resources.shm} of it /dev/shm), and asks "
            f"for {pod.resources.memory}: raise spec.topology.trainer.resources.memory."
        )
