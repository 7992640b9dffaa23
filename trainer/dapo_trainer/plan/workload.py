"""The pods of a job, and the prompts, tokens and updates of one of its steps. Pure arithmetic on the spec."""

from collections.abc import Iterator
from dataclasses import dataclass

from dapo_core.jobspec import DAPOJobSpec


@dataclass(frozen=True)
class PodGroup:
    """The pods of one role: how many there are, what each runs, and what each requests."""

    role: str
    count: int
    runs: str
    gpus: int
    cpu: str
    memory: str


@dataclass(frozen=True)
class StepWork:
    """The work of one step; token counts are upper bounds (every prompt and response at its limit)."""

    prompts: int
    responses: int
    prompt_tokens: int
    response_tokens: int
    updates: int
    responses_per_update: int
    max_prompts_generated: int | None
    """None when dynamic sampling is off or has no cap."""


def pod_groups(spec: DAPOJobSpec) -> Iterator[PodGroup]:
    """The pods that the operator would create, by role."""
    topology = spec.topology
    head, trainer, rollout = topology.head, topology.trainer, topology.rollout
    separated = topology.mode == "Separated"
    engines = topology.layout.engines
    yield PodGroup("head", 1, "Ray head and the driver", 0, head.resources.cpu, head.resources.memory)
    runs = f"{topology.layout.slots_per_pod('trainer')} FSDP rank(s)" + (
        "" if separated else f", taking turns with {engines} vLLM engine(s) in total"
    )
    resources = trainer.resources
    yield PodGroup("trainer", trainer.replicas, runs, trainer.gpus_per_pod, resources.cpu, resources.memory)
    if separated:
        runs = f"{engines} vLLM engine(s) in total, tensor parallel {rollout.tensor_parallel}"
        resources = rollout.resources
        yield PodGroup("rollout", rollout.replicas, runs, rollout.gpus_per_pod, resources.cpu, resources.memory)


def step_work(spec: DAPOJobSpec) -> StepWork:
    """What one step generates at most, and trains on."""
    batch, sampling = spec.batch, spec.algorithm.dynamic_sampling
    responses = batch.prompts * batch.responses_per_prompt
    capped = sampling.enabled and sampling.max_generation_batches
    return StepWork(
        prompts=batch.prompts,
        responses=responses,
        prompt_tokens=batch.prompts * spec.data.max_prompt_tokens,
        response_tokens=responses * batch.max_response_tokens,
        updates=batch.updates_per_step,
        responses_per_update=batch.mini_batch_responses,
        max_prompts_generated=batch.prompts * sampling.max_generation_batches if capped else None,
    )
