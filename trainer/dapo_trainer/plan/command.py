"""The subcommand: reads the job file, composes, prints."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from omegaconf import OmegaConf
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from dapo_core.jobspec import DAPOJob, field_sources, parse_job, read_mapping
from dapo_core.jobspec.leaves import leaves
from dapo_core.jobspec.parse import absolute_paths
from dapo_trainer.data.sources import local_path
from dapo_trainer.plan.accelerators import ACCELERATORS, DEFAULT
from dapo_trainer.plan.architecture import Architecture, known, of_folder
from dapo_trainer.plan.duration import Assumptions
from dapo_trainer.plan.estimate import Estimate, estimate
from dapo_trainer.plan.figures import pods, step
from dapo_trainer.plan.tables import tables, warned
from dapo_trainer.verl_config import Paths, Placement, compose, overrides
from dapo_trainer.verl_config.device import detect


def _paths(job: DAPOJob) -> Paths:
    """Where a run's files would be; nothing is fetched for a plan."""
    data = job.spec.data
    return Paths(
        model=job.spec.model.source,
        train=tuple(d.source for d in data.train),
        validation=tuple(d.source for d in data.validation),
        checkpoints="<work folder>/checkpoints",
    )


def _pods_table(job: DAPOJob) -> Table:
    table = Table(
        "role", "pods", "runs", job.spec.topology.gpu_resource, "cpu", "memory", title="Pods", title_justify="left"
    )
    for pod in pods(job.spec):
        table.add_row(pod.role, str(pod.count), pod.runs, str(pod.accelerators), pod.cpu, pod.memory)
    return table


def _step_table(job: DAPOJob) -> Table:
    one, table = step(job.spec), Table(title="One step", title_justify="left", show_header=False)
    gpus = job.spec.topology.layout.gpus
    table.add_row("GPUs", f"{gpus:,}" if gpus else "none: on processors")
    table.add_row("prompts x responses", f"{one.prompts:,} x {job.spec.batch.responses_per_prompt} = {one.responses:,}")
    table.add_row("tokens, at most", f"{one.prompt_tokens:,} of prompts, {one.response_tokens:,} of responses")
    table.add_row("updates", f"{one.updates} of {one.responses_per_update:,} responses")
    if one.most_prompts_generated is not None:
        table.add_row("dynamic sampling", f"up to {one.most_prompts_generated:,} prompts generated for one batch")
    elif job.spec.algorithm.dynamic_sampling.enabled:
        table.add_row("dynamic sampling", "no cap on the prompts generated for one batch")
    return table


def _wide(*columns: str, title: str) -> Table:
    """A table whose cells are folded, never cut: a name of which a part is missing is of no use."""
    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(column, overflow="fold")
    table.add_column("from", no_wrap=True)
    return table


def _sources_table(raw: dict[str, Any], job: DAPOJob) -> Table:
    """Every field of the job that has a value, and who gave it."""
    sources = field_sources(raw)
    values = leaves(job.spec.model_dump(by_alias=True, mode="json", exclude_none=True), "spec")
    table = _wide("field", "value", title="The job")
    for field, value in values:
        origin = sources.get(field, "default")
        table.add_row(field.removeprefix("spec."), str(value), origin, style=None if origin == "file" else "dim")
    return table


def _verl_table(job: DAPOJob, placement: Placement) -> Table:
    """The verl keys that differ from verl's own defaults, and who set them."""
    paths = _paths(job)
    config = compose(job.spec, placement, paths)
    mine, theirs = overrides(job.spec, placement, paths), dict(leaves(job.spec.verl_overrides, into_lists=False))
    table = _wide("verl key", "value", title="verl's configuration, where it is not its default")
    for key in sorted({*mine, *theirs}):
        value = OmegaConf.select(config, key)
        table.add_row(key, str(value), "verlOverrides" if key in theirs else "the job")
    return table


def _architecture(job: DAPOJob) -> Architecture | None:
    """Of the model on this machine, or of one that the table knows; nothing is fetched."""
    source = job.spec.model.source
    return of_folder(local_path(source)) if source.startswith("file:") else known(source)


def _estimate(job: DAPOJob, gpu: str, assumptions: Assumptions) -> Estimate | str:
    """Or the reason why there is none."""
    model = _architecture(job)
    if not job.spec.topology.trainer.gpus_per_pod:
        return "Memory and time are estimated for GPUs only, and this job's trainer has none."
    if model is None:
        return (
            f"No estimate of memory and time: the shape of {job.spec.model.source} is not known here. Name the folder "
            "of a dense Qwen or Llama model."
        )
    config = compose(job.spec, Placement("cuda"), _paths(job))
    return estimate(job.spec, config, model, ACCELERATORS[gpu], assumptions)


def _parts(raw: dict[str, Any], job: DAPOJob, verl: Table, found: Estimate | str) -> Iterator[RenderableType]:
    """In the order of printing: what cannot fit comes last, where a terminal still shows it."""
    yield _pods_table(job)
    yield _step_table(job)
    if isinstance(found, str):
        yield Text(found, "dim")
    else:
        yield from tables(found, job.spec.schedule.steps)
    yield _sources_table(raw, job)
    yield verl
    if isinstance(found, Estimate):
        yield from warned(found)


def _gpu(name: str) -> str:
    if name not in ACCELERATORS:
        raise typer.BadParameter(f"{name} is not known; there are {', '.join(ACCELERATORS)}.")
    return name


_ASSUMED = Assumptions()


def plan(
    job_file: Annotated[Path, typer.Argument(help="A DAPOJob as YAML.", metavar="JOB.YAML")],
    full: Annotated[bool, typer.Option("--full", help="Print verl's whole configuration as YAML instead.")] = False,
    gpu: Annotated[
        str, typer.Option(callback=_gpu, help=f"Kind of GPU to estimate for: {', '.join(ACCELERATORS)}.")
    ] = DEFAULT,
    mfu: Annotated[
        float, typer.Option(min=0.01, max=1, help="Share of a GPU's speed that updates reach.")
    ] = _ASSUMED.mfu,
    mfu_forward: Annotated[
        float, typer.Option(min=0.01, max=1, help="Share of a GPU's speed that log-probs reach.")
    ] = _ASSUMED.mfu_forward,
    bandwidth_share: Annotated[
        float, typer.Option(min=0.01, max=1, help="Share of a GPU's memory bandwidth that decoding reaches.")
    ] = _ASSUMED.bandwidth_share,
    decode_rate: Annotated[
        float | None, typer.Option(min=1, help="Tokens generated a second and GPU, instead of the bandwidth's.")
    ] = None,
    response_share: Annotated[
        float, typer.Option(min=0.001, max=1, help="Mean response, as a share of batch.maxResponseTokens.")
    ] = _ASSUMED.response_share,
    kept_share: Annotated[
        float, typer.Option(min=0.01, max=1, help="Share of groups that dynamic sampling keeps.")
    ] = _ASSUMED.kept_share,
    sync_seconds_per_gb: Annotated[
        float, typer.Option(min=0, help="Seconds to hand over a GB of weights.")
    ] = _ASSUMED.sync_seconds_per_gb,
    step_overhead: Annotated[
        float, typer.Option(min=0, help="Seconds an engine spends on a token besides reading memory.")
    ] = _ASSUMED.step_overhead,
) -> None:
    """Show what a job would do, without starting anything."""
    raw = absolute_paths(read_mapping(job_file), job_file.resolve().parent)
    job = parse_job(raw)
    placement = Placement(detect())
    if full:
        print(OmegaConf.to_yaml(compose(job.spec, placement, _paths(job))), end="")
        return
    assumptions = Assumptions(
        mfu, mfu_forward, bandwidth_share, response_share, kept_share, sync_seconds_per_gb, step_overhead, decode_rate
    )
    verl, found, console = _verl_table(job, placement), _estimate(job, gpu, assumptions), Console()
    for part in _parts(raw, job, verl, found):
        console.print(part, "")
