"""Memory of one GPU by cause, while it trains and while it generates. Pure arithmetic in bytes.

Estimates, for telling what cannot fit from what may: allocators, communication buffers and CUDA itself are the flat
`RUNTIME`, and what a layer holds while it is computed anew is counted, not measured.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from dapo_core.jobspec import DAPOJobSpec
from dapo_trainer.plan.accelerators import GIB, Accelerator
from dapo_trainer.plan.architecture import Architecture

# CUDA's context, NCCL's buffers and what allocators hold on to, in each process group of a GPU.
RUNTIME: Final = 3 * GIB
# vLLM's own: its activations and CUDA graphs.
ENGINE_RUNTIME: Final = 4 * GIB
# Of each token and word of the vocabulary: logits and their gradient in bfloat16, and a float32 copy for the loss.
LOGIT_BYTES: Final = 8
_BYTES: Final[Mapping[str, int]] = {"fp32": 4, "float32": 4, "bf16": 2, "bfloat16": 2, "fp16": 2, "float16": 2}


@dataclass(frozen=True)
class Engine:
    """How verl is configured, where memory depends on it; read from the composed configuration."""

    ranks: int
    sequence_parallel: int
    tokens_per_gpu: int
    """Most tokens that a GPU holds of one forward and backward pass."""
    weight_bytes: int
    compute_bytes: int
    gradient_checkpointing: bool
    weights_leave: bool
    """Weights are in main memory while vLLM generates (`param_offload`)."""
    optimizer_leaves: bool
    utilization: float
    """Share of a GPU that vLLM takes for weights and KV cache."""
    tensor_parallel: int
    max_sequences: int
    lora_rank: int
    colocated: bool

    @classmethod
    def of(cls, spec: DAPOJobSpec, config: Any) -> "Engine":
        """`config`: what `verl_config.compose` made of the spec for CUDA."""
        actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
        sharded = int(actor.fsdp_config.fsdp_size)
        ranks = spec.topology.layout.fsdp_ranks
        return cls(
            ranks=ranks if sharded <= 0 else min(sharded, ranks),
            sequence_parallel=int(actor.ulysses_sequence_parallel_size),
            tokens_per_gpu=int(actor.ppo_max_token_len_per_gpu),
            weight_bytes=_BYTES[str(actor.fsdp_config.get("model_dtype") or "fp32")],
            compute_bytes=_BYTES[spec.model.dtype],
            gradient_checkpointing=bool(config.actor_rollout_ref.model.enable_gradient_checkpointing),
            weights_leave=bool(actor.fsdp_config.param_offload),
            optimizer_leaves=bool(actor.fsdp_config.optimizer_offload),
            utilization=float(rollout.gpu_memory_utilization),
            tensor_parallel=int(rollout.tensor_model_parallel_size),
            max_sequences=int(rollout.max_num_seqs),
            lora_rank=int(config.actor_rollout_ref.model.lora_rank),
            colocated=spec.topology.mode == "Colocated",
        )


@dataclass(frozen=True)
class Training:
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
class Generation:
    """Bytes on one GPU while vLLM generates. `resident`: what of the trainer stays; `kv_cache` is what is left of
    vLLM's share, and may be negative. `tokens` are those it holds, over all GPUs of an engine."""

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


def training(model: Architecture, engine: Engine, tokens: int) -> Training:
    """`tokens`: the longest prompt and response together; a pass holds at least one."""
    trained = trained_parameters(model, engine.lora_rank)
    held = max(engine.tokens_per_gpu, -(-tokens // engine.sequence_parallel))
    # Of a layer's linear maps every input is kept for its gradient: two norms, q, k, v, attention, and the MLP's three.
    widths = 4 * model.hidden + 2 * model.heads * model.head_dim + 2 * model.kv_heads * model.head_dim
    layer = held * (widths + 3 * model.intermediate) * engine.compute_bytes
    kept = held * model.hidden * engine.compute_bytes * model.layers
    # FSDP gathers a layer while it computes the one before, and holds embedding and head throughout.
    ends = model.embedding_parameters * (1 if model.tied else 2)
    return Training(
        weights=model.parameters * engine.weight_bytes / engine.ranks,
        gradients=trained * engine.weight_bytes / engine.ranks,
        optimizer=2 * trained * engine.weight_bytes / engine.ranks,
        gathered=(2 * model.layer_parameters + ends) * engine.compute_bytes if engine.ranks > 1 else 0.0,
        activations=kept + layer if engine.gradient_checkpointing else layer * model.layers,
        logits=float(held * model.vocabulary * LOGIT_BYTES),
        runtime=float(RUNTIME),
    )


def generation(model: Architecture, engine: Engine, trainer: Training, gpu: Accelerator) -> Generation:
    weights = model.parameters * engine.compute_bytes / engine.tensor_parallel
    kv_cache = engine.utilization * gpu.memory - weights - ENGINE_RUNTIME
    resident = 0.0
    if engine.colocated:
        resident = trainer.runtime
        resident += 0 if engine.weights_leave else trainer.weights
        resident += 0 if engine.optimizer_leaves else trainer.optimizer
    per_token = model.kv_bytes(engine.tensor_parallel, engine.compute_bytes)
    return Generation(weights, kv_cache, float(ENGINE_RUNTIME), resident, max(0, int(kv_cache / per_token)))


def in_main_memory(trainer: Training, engine: Engine, gpus_per_pod: int) -> float:
    """Bytes of a pod's main memory that hold what leaves its GPUs."""
    each = (trainer.weights if engine.weights_leave else 0) + (trainer.optimizer if engine.optimizer_leaves else 0)
    return each * gpus_per_pod
