"""A job's pods and the work of one of its steps, and what `dapo plan` prints, as tables. Pure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from dapo_core.jobspec import DAPOJob, DAPOJobSpec, field_sources
from dapo_core.jobspec.leaves import leaves
from dapo_trainer.plan.estimate import Estimate, gib
from dapo_trainer.plan.gpu_sizes import Size
from dapo_trainer.plan.memory import head_memory


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


def pods_table(job: DAPOJob) -> Table:
    """The job's pods, by role."""
    table = Table(
        "role", "pods", "runs", job.spec.topology.gpu_resource, "cpu", "memory", title="Pods", title_justify="left"
    )
    for group in pod_groups(job.spec):
        table.add_row(group.role, str(group.count), group.runs, str(group.gpus), group.cpu, group.memory)
    return table


def step_table(job: DAPOJob) -> Table:
    """The work of one step."""
    work, table = step_work(job.spec), Table(title="One step", title_justify="left", show_header=False)
    gpus, per_prompt = job.spec.topology.layout.gpus, job.spec.batch.responses_per_prompt
    table.add_row("GPUs", f"{gpus:,}" if gpus else "none: runs on CPUs")
    table.add_row("prompts x responses", f"{work.prompts:,} x {per_prompt} = {work.responses:,}")
    table.add_row("tokens, at most", f"{work.prompt_tokens:,} of prompts, {work.response_tokens:,} of responses")
    head = head_memory(job.spec)
    table.add_row(
        "memory of the head, at most",
        f"{gib(head.total)}: {gib(head.queue)} data queue, {gib(head.computing)} advantages and metrics, "
        f"{gib(head.processes)} processes, {gib(head.shared)} /dev/shm",
    )
    table.add_row("updates", f"{work.updates} of {work.responses_per_update:,} responses")
    if work.max_prompts_generated is not None:
        table.add_row("dynamic sampling", f"up to {work.max_prompts_generated:,} prompts generated for one batch")
    elif job.spec.algorithm.dynamic_sampling.enabled:
        table.add_row("dynamic sampling", "no cap on the prompts generated for one batch")
    return table


def memory_table(estimate: Estimate) -> Table:
    """Memory of one GPU by cause."""
    trainer, rollout = estimate.training, estimate.generation
    title = f"Memory of one {estimate.gpu.name}, estimated: {_count(estimate.model.parameters)} weights"
    table = Table("cause", "training", "generating", title=title, title_justify="left")
    rows = [
        ("weights", trainer.weights, rollout.weights),
        ("gradients", trainer.gradients, None),
        ("optimizer", trainer.optimizer, None),
        ("weights gathered from other GPUs", trainer.gathered, None),
        (f"activations of {max(estimate.settings.tokens_per_gpu, 1):,} tokens", trainer.activations, None),
        ("logits", trainer.logits, None),
        ("KV cache", None, max(rollout.kv_cache, 0)),
        ("trainer state that stays resident", None, rollout.resident),
        ("CUDA, NCCL, buffers", trainer.runtime, rollout.runtime),
    ]
    for cause, training, generating in rows:
        table.add_row(cause, *("" if value is None else gib(value) for value in (training, generating)))
    table.add_section()
    table.add_row("total", gib(trainer.total), gib(rollout.total), style="bold")
    table.add_row("of a GPU's", gib(estimate.gpu.memory), gib(estimate.gpu.memory))
    table.add_row("KV cache of an engine", "", f"{rollout.tokens:,} tokens")
    return table


def sizes_table(sizes: Sequence[Size]) -> Table:
    """What follows from model and GPU, and why."""
    table = Table(title="Derived from the model and the GPU", title_justify="left")
    for column in ("verl key", "value", "why"):
        table.add_column(column, overflow="fold")
    for size in sizes:
        table.add_row(size.key, f"{size.value:,}", size.why)
    return table


def warning_lines(sentences: Iterable[str]) -> Iterator[RenderableType]:
    """What cannot fit, a line for each."""
    for sentence in sentences:
        yield Text.assemble(("warning: ", "bold yellow"), sentence)


def job_table(raw: dict[str, Any], job: DAPOJob) -> Table:
    """Every field of the job that has a value, and where the value comes from."""
    sources = field_sources(raw)
    values = leaves(job.spec.model_dump(by_alias=True, mode="json", exclude_none=True), "spec")
    table = _folding_table("field", "value", title="The job")
    for field, value in values:
        origin = sources.get(field, "default")
        table.add_row(field.removeprefix("spec."), str(value), origin, style=None if origin == "file" else "dim")
    return table


def verl_table(values: Mapping[str, Any], overridden: set[str]) -> Table:
    """verl's keys that differ from verl's own defaults; `overridden` are those set by `verlOverrides`."""
    table = _folding_table("verl key", "value", title="verl's configuration, where it differs from verl's defaults")
    for key in sorted(values):
        table.add_row(key, str(values[key]), "verlOverrides" if key in overridden else "the job")
    return table


def _folding_table(*columns: str, title: str) -> Table:
    """A table whose cells are folded, never cut: a name of which a part is missing is of no use."""
    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column, overflow="fold")
    table.add_column("from", no_wrap=True)
    return table


def _count(number: int) -> str:
    return f"{number / 1e9:.3g} billion" if number >= 1e8 else f"{number:,}"
