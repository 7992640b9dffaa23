"""What a job amounts to: processes, tokens and updates a step. Pure arithmetic on the spec."""

from collections.abc import Iterator
from dataclasses import dataclass

from dapo_core.jobspec import DAPOJobSpec


@dataclass(frozen=True)
class Pod:
    """One kind of pod: how many, what each runs, and what each asks for."""

    role: str
    count: int
    runs: str
    accelerators: int
    cpu: str
    memory: str


@dataclass(frozen=True)
class Step:
    """One step's work; token counts are upper bounds (every prompt and response at its limit)."""

    prompts: int
    responses: int
    prompt_tokens: int
    response_tokens: int
    updates: int
    responses_per_update: int
    most_prompts_generated: int | None


def pods(spec: DAPOJobSpec) -> Iterator[Pod]:
    topology = spec.topology
    head, trainer, rollout = topology.head, topology.trainer, topology.rollout
    separated = topology.mode == "Separated"
    engines = topology.layout.engines
    yield Pod("head", 1, "Ray head and the driver", 0, head.resources.cpu, head.resources.memory)
    work = f"{topology.layout.slots_per_pod('trainer')} FSDP rank(s)" + (
        "" if separated else f", {engines} vLLM engine(s) in all, taking turns"
    )
    yield Pod("trainer", trainer.replicas, work, trainer.gpus_per_pod, trainer.resources.cpu, trainer.resources.memory)
    if separated:
        each = f"{engines} vLLM engine(s) in all, {rollout.tensor_parallel} wide"
        yield Pod(
            "rollout", rollout.replicas, each, rollout.gpus_per_pod, rollout.resources.cpu, rollout.resources.memory
        )


def step(spec: DAPOJobSpec) -> Step:
    batch, sampling = spec.batch, spec.algorithm.dynamic_sampling
    responses = batch.prompts * batch.responses_per_prompt
    capped = sampling.enabled and sampling.max_generation_batches
    return Step(
        prompts=batch.prompts,
        responses=responses,
        prompt_tokens=batch.prompts * spec.data.max_prompt_tokens,
        response_tokens=responses * batch.max_response_tokens,
        updates=batch.updates_per_step,
        responses_per_update=batch.mini_batch_responses,
        most_prompts_generated=batch.prompts * sampling.max_generation_batches if capped else None,
    )
