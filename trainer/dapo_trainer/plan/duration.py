"""How long a step takes, by phase, from assumptions that are said and can be given. Pure arithmetic in seconds.

A rough figure, for choosing a topology and a budget: data sheets' speeds times shares of them that such jobs reach.
"""

from dataclasses import dataclass

from dapo_core.jobspec import DAPOJobSpec
from dapo_trainer.plan.accelerators import Accelerator
from dapo_trainer.plan.architecture import Architecture
from dapo_trainer.plan.memory import Engine, Generation


@dataclass(frozen=True)
class Assumptions:
    """`mfu`: share of a GPU's dense speed that training reaches, at 6 operations a weight and token (recomputation is
    work that this does not count); `mfu_forward`: the same of log-probs, at 2; `bandwidth_share`: of memory's speed
    that decoding reaches. `response_share`: mean response in shares of the longest one. `kept_share`: groups that
    dynamic sampling keeps (0.48 at the published run's first step). `sync_seconds_per_gb`: weights to the engines.
    `step_overhead`: seconds of scheduling and sampling that an engine spends on each token of all its sequences.
    `decode_rate`: tokens a second and GPU; None to reckon it from memory's speed."""

    mfu: float = 0.35
    mfu_forward: float = 0.45
    bandwidth_share: float = 0.6
    response_share: float = 0.3
    kept_share: float = 0.5
    sync_seconds_per_gb: float = 0.25
    step_overhead: float = 0.005
    decode_rate: float | None = None


@dataclass(frozen=True)
class Duration:
    """Seconds of one step. `overlap`: generation runs while the batch before is trained on."""

    generate: float
    tail: float
    log_probs: float
    update: float
    sync: float
    overlap: bool
    decode_rate: float
    tokens_generated: float
    tokens_trained: float

    @property
    def step(self) -> float:
        sampling, training = self.generate + self.tail, self.log_probs + self.update
        return (max(sampling, training) if self.overlap else sampling + training) + self.sync


def estimate(
    spec: DAPOJobSpec,
    model: Architecture,
    engine: Engine,
    held: Generation,
    gpu: Accelerator,
    assumed: Assumptions,
) -> Duration | None:
    """None when vLLM cannot hold one response: no speed follows from that."""
    longest = spec.data.max_prompt_tokens + spec.batch.max_response_tokens
    response = spec.batch.max_response_tokens * assumed.response_share
    engines, width = spec.topology.layout.engines, engine.tensor_parallel
    if held.tokens < longest:
        return None
    kept = assumed.kept_share if spec.algorithm.dynamic_sampling.enabled else 1.0
    responses = spec.batch.responses / kept
    at_once = min(engine.max_sequences, responses / engines, held.tokens / (response / 2))
    one, many = (_decode_step(model, width, n, response / 2, gpu, assumed) for n in (1.0, at_once))
    rate = assumed.decode_rate or at_once / many / width
    trained = spec.batch.responses * response
    context = response / 2
    forward = trained * model.forward_flops(context)
    speed = spec.topology.layout.fsdp_ranks * gpu.tflops * 1e12
    return Duration(
        generate=responses * response / (rate * width * engines),
        # The longest response goes on after the others: it is read out at an engine's speed for one sequence.
        tail=(spec.batch.max_response_tokens - response) * one,
        log_probs=forward / (speed * assumed.mfu_forward),
        update=3 * forward / (speed * assumed.mfu),
        sync=model.parameters * engine.compute_bytes / 1e9 * assumed.sync_seconds_per_gb,
        overlap=not engine.colocated,
        decode_rate=rate,
        tokens_generated=responses * response,
        tokens_trained=trained,
    )


def _decode_step(
    model: Architecture, width: int, sequences: float, context: float, gpu: Accelerator, assumed: Assumptions
) -> float:
    """Seconds in which an engine reads out one token of each sequence: weights and caches pass through memory once,
    or the arithmetic takes longer; and the engine's own work comes on top."""
    read = model.parameters * 2 / width + sequences * context * model.kv_bytes(width)
    compute = sequences * model.forward_flops(context) / width
    busy = max(read / (gpu.bandwidth * 1e12 * assumed.bandwidth_share), compute / (gpu.tflops * 1e12 * assumed.mfu))
    return busy + assumed.step_overhead
