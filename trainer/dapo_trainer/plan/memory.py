"""Memory of one GPU by cause, while it trains and while it generates, and of the head pod. Pure arithmetic in bytes.

These are estimates, to tell what cannot fit from what may: allocators, communication buffers and CUDA itself are the
flat `RUNTIME`, and what a layer holds while its activations are recomputed is counted, not measured. The head holds the
data queue, what the driver computes over a batch, and its processes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from dapo_core.jobspec import DAPOJobSpec
from dapo_core.quantity import GIB, amount
from dapo_trainer.plan.architecture import Architecture
from dapo_trainer.verl_config.kernels import LOG_PROB_CHUNK
from dapo_trainer.verl_config.overrides import storage_units

# CUDA's context, NCCL's buffers and what allocators hold on to, in each process group of a GPU.
RUNTIME: Final = 3 * GIB
# vLLM's own: its activations and CUDA graphs.
ENGINE_RUNTIME: Final = 4 * GIB
# For each token and entry of the vocabulary: logits and their gradient in bfloat16, and a float32 copy for the loss.
LOGIT_BYTES: Final = 8
# The same where log-probs are computed for a chunk of tokens: two float32 copies, and the gradient in bfloat16.
CHUNK_LOGIT_BYTES: Final = 10
# The output head's gradient is then summed up in float32, before its copy in the dtype of the head.
HEAD_GRADIENT_BYTES: Final = 4
_BYTES: Final[Mapping[str, int]] = {"fp32": 4, "float32": 4, "bf16": 2, "bfloat16": 2, "fp16": 2, "float16": 2}


@dataclass(frozen=True)
class GpuKind:
    """A kind of GPU and its memory in GiB, as the driver reports it."""

    name: str
    gib: float

    @property
    def memory(self) -> float:
        """In bytes."""
        return self.gib * GIB


GPUS: Final[Mapping[str, GpuKind]] = {
    gpu.name: gpu
    for gpu in (
        GpuKind("a100-80gb", 80.0),
        GpuKind("a800-80gb", 80.0),
        GpuKind("h100-80gb", 79.6),
        GpuKind("h800-80gb", 79.6),
        GpuKind("h200", 140.4),
        GpuKind("h20", 95.6),
        GpuKind("b200", 178.4),
        GpuKind("l40s", 44.9),
    )
}
DEFAULT_GPU: Final = "h100-80gb"


@dataclass(frozen=True)
class MemorySettings:
    """What memory depends on in verl's composed configuration."""

    ranks: int
    sequence_parallel: int
    tokens_per_gpu: int
    """Maximum tokens of one forward and backward pass on a GPU."""
    logit_chunk: int
    """Tokens whose logits are held at a time; 0 for those of the whole pass."""
    weight_bytes: int
    compute_bytes: int
    gradient_checkpointing: bool
    weights_offloaded: bool
    """Weights are in main memory while vLLM generates (`param_offload`)."""
    optimizer_offloaded: bool
    utilization: float
    """Share of a GPU that vLLM takes for weights and KV cache."""
    tensor_parallel: int
    lora_rank: int
    colocated: bool

    @classmethod
    def of(cls, spec: DAPOJobSpec, config: Any) -> "MemorySettings":
        """`config`: what `verl_config.compose` made of the spec for CUDA."""
        actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
        sharded = int(actor.fsdp_config.fsdp_size)
        ranks = spec.topology.layout.fsdp_ranks
        return cls(
            ranks=ranks if sharded <= 0 else min(sharded, ranks),
            sequence_parallel=int(actor.ulysses_sequence_parallel_size),
            tokens_per_gpu=int(actor.ppo_max_token_len_per_gpu),
            logit_chunk=LOG_PROB_CHUNK if config.actor_rollout_ref.model.use_fused_kernels else 0,
            weight_bytes=_BYTES[str(actor.fsdp_config.get("model_dtype") or "fp32")],
            compute_bytes=_BYTES[spec.model.dtype],
            gradient_checkpointing=bool(config.actor_rollout_ref.model.enable_gradient_checkpointing),
            weights_offloaded=bool(actor.fsdp_config.param_offload),
            optimizer_offloaded=bool(actor.fsdp_config.optimizer_offload),
            utilization=float(rollout.gpu_memory_utilization),
            tensor_parallel=int(rollout.tensor_model_parallel_size),
            lora_rank=int(config.actor_rollout_ref.model.lora_rank),
            colocated=spec.topology.mode == "Colocated",
        )


@dataclass(frozen=True)
class TrainingMemory:
    """Bytes on one GPU while it trains."""

    weights: float
    gradients: float
    optimizer: float
    gathered: float
    activations: float
    logits: float
    runtime: float

    @property
    def total(self) -> float:
        return (
            self.weights
            + self.gradients
            + self.optimizer
            + self.gathered
            + self.activations
            + self.logits
            + self.runtime
        )


@dataclass(frozen=True)
class GenerationMemory:
    """Bytes on one GPU while vLLM generates. `resident`: what of the trainer stays on the GPU; `kv_cache`: the rest of
    vLLM's share, which may be negative; `tokens`: what the KV cache of an engine holds, over all of its GPUs."""

    weights: float
    kv_cache: float
    runtime: float
    resident: float
    tokens: int

    @property
    def total(self) -> float:
        return self.weights + max(self.kv_cache, 0) + self.runtime + self.resident


def trained_parameters(model: Architecture, lora_rank: int) -> int:
    """All of them, or those of adapters on every linear layer."""
    if not lora_rank:
        return model.parameters
    queries, keys = model.heads * model.head_dim, model.kv_heads * model.head_dim
    ends = (
        (model.hidden + queries)
        + 2 * (model.hidden + keys)
        + (queries + model.hidden)
        + 3 * (model.hidden + model.intermediate)
    )
    return model.layers * lora_rank * ends


def training_memory(model: Architecture, settings: MemorySettings, tokens: int) -> TrainingMemory:
    """`tokens`: the longest prompt and response together; a pass holds at least one."""
    trained = trained_parameters(model, settings.lora_rank)
    held = max(settings.tokens_per_gpu, -(-tokens // settings.sequence_parallel))
    # Of a layer's linear maps every input is kept for its gradient: two norms, q, k, v, attention, and the MLP's three.
    widths = 4 * model.hidden + 2 * model.heads * model.head_dim + 2 * model.kv_heads * model.head_dim
    layer = held * (widths + 3 * model.intermediate) * settings.compute_bytes
    kept = held * model.hidden * settings.compute_bytes * model.layers
    # FSDP gathers a layer while it computes the one before, and holds embedding and head throughout.
    ends = model.embedding_parameters * (1 if model.tied else 2)
    return TrainingMemory(
        weights=model.parameters * settings.weight_bytes / settings.ranks,
        gradients=trained * settings.weight_bytes / settings.ranks,
        optimizer=2 * trained * settings.weight_bytes / settings.ranks,
        gathered=(2 * model.layer_parameters + ends) * settings.compute_bytes if settings.ranks > 1 else 0.0,
        activations=kept + layer if settings.gradient_checkpointing else layer * model.layers,
        logits=float(_logits(model, settings, held)),
        runtime=float(RUNTIME),
    )


def _logits(model: Architecture, settings: MemorySettings, held: int) -> int:
    if not settings.logit_chunk:
        return held * model.vocabulary * LOGIT_BYTES
    head = model.embedding_parameters * (HEAD_GRADIENT_BYTES + settings.compute_bytes)
    return min(settings.logit_chunk, held) * model.vocabulary * CHUNK_LOGIT_BYTES + head


def generation_memory(
    model: Architecture, settings: MemorySettings, trainer: TrainingMemory, gpu: GpuKind
) -> GenerationMemory:
    """`trainer`: what the same GPU holds while it trains; counted in Colocated mode, where it is not offloaded."""
    weights = model.parameters * settings.compute_bytes / settings.tensor_parallel
    kv_cache = settings.utilization * gpu.memory - weights - ENGINE_RUNTIME
    resident = 0.0
    if settings.colocated:
        resident = trainer.runtime
        resident += 0 if settings.weights_offloaded else trainer.weights
        resident += 0 if settings.optimizer_offloaded else trainer.optimizer
    per_token = model.kv_bytes(settings.tensor_parallel, settings.compute_bytes)
    return GenerationMemory(weights, kv_cache, float(ENGINE_RUNTIME), resident, max(0, int(kv_cache / per_token)))


def offloaded_memory(trainer: TrainingMemory, settings: MemorySettings, gpus_per_pod: int) -> float:
    """Bytes of a pod's main memory that hold what is offloaded from its GPUs."""
    weights = trainer.weights if settings.weights_offloaded else 0
    optimizer = trainer.optimizer if settings.optimizer_offloaded else 0
    return (weights + optimizer) * gpus_per_pod


# In the queue: tokens, ids, positions and two masks as 64-bit integers, reward and vLLM's log-prob as float32 ...
GENERATED_BYTES: Final = 5 * 8 + 2 * 4
# ... and what the trainer adds: two log-probs, two entropies, advantage and return.
TRAINED_BYTES: Final = 6 * 4
PROMPT_BYTES: Final = 3 * 8 + 2 * 4
# Tokens, padding included, of the part of a batch that is computed at a time: 800 of the paper's longest responses.
PART_TOKENS: Final = 1 << 24
# Measured by benchmarks/head_memory.py: for a token of such a part, and, for the metrics, of the whole batch when
# padded to its longest response.
PART_BYTES: Final = 80
PADDED_BYTES: Final = 29
# A wave of prompts is at most two batches; in Separated mode one batch is ahead of the one that is trained on.
BATCHES: Final = 2
DRIVER: Final = 1.1 * GIB
STORAGE_UNIT: Final = 0.75 * GIB


@dataclass(frozen=True)
class HeadMemory:
    """Bytes, with every prompt and response at its limit. `shared`: /dev/shm, which counts towards the pod's memory."""

    queue: float
    computing: float
    processes: float
    shared: float

    @property
    def total(self) -> float:
        return self.queue + self.computing + self.processes + self.shared


def head_memory(spec: DAPOJobSpec) -> HeadMemory:
    """What the head needs at most."""
    batch = spec.batch
    tokens, prompts = batch.responses * batch.max_response_tokens, batch.responses * spec.data.max_prompt_tokens
    ahead = spec.algorithm.dynamic_sampling.enabled or spec.topology.mode == "Separated"
    generated = (BATCHES if ahead else 1) * (tokens * GENERATED_BYTES + prompts * PROMPT_BYTES)
    return HeadMemory(
        queue=generated + tokens * TRAINED_BYTES,
        computing=max(min(tokens, PART_TOKENS) * PART_BYTES, tokens * PADDED_BYTES),
        processes=DRIVER + (storage_units(spec) + 1) * STORAGE_UNIT,
        shared=float(amount(spec.topology.head.resources.shm)),
    )
