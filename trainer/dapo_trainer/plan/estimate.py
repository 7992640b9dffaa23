"""Memory, time and warnings of a job on GPUs of one kind, put together. Pure."""

from dataclasses import dataclass
from typing import Any

from dapo_core.jobspec import DAPOJobSpec
from dapo_trainer.plan.accelerators import Accelerator
from dapo_trainer.plan.architecture import Architecture
from dapo_trainer.plan.duration import Assumptions, Duration
from dapo_trainer.plan.duration import estimate as duration_of
from dapo_trainer.plan.memory import Engine, Generation, Training, generation, training
from dapo_trainer.plan.warnings import warnings


@dataclass(frozen=True)
class Estimate:
    """`duration` is None where vLLM cannot hold a response."""

    model: Architecture
    gpu: Accelerator
    engine: Engine
    assumptions: Assumptions
    training: Training
    generation: Generation
    duration: Duration | None
    warnings: tuple[str, ...]


def estimate(
    spec: DAPOJobSpec, config: Any, model: Architecture, gpu: Accelerator, assumptions: Assumptions
) -> Estimate:
    """`config`: what `verl_config.compose` made of the spec for CUDA."""
    engine = Engine.of(spec, config)
    trainer = training(model, engine, spec.data.max_prompt_tokens + spec.batch.max_response_tokens)
    rollout = generation(model, engine, trainer, gpu)
    return Estimate(
        model=model,
        gpu=gpu,
        engine=engine,
        assumptions=assumptions,
        training=trainer,
        generation=rollout,
        duration=duration_of(spec, model, engine, rollout, gpu, assumptions),
        warnings=tuple(warnings(spec, model, engine, trainer, rollout, gpu)),
    )
