"""`dapo plan`: reads the job file, composes verl's configuration, prints; starts and fetches nothing."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from omegaconf import OmegaConf
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from dapo_core.errors import ModelError
from dapo_core.jobspec import DAPOJob, parse_job, read_mapping
from dapo_core.jobspec.leaves import leaves
from dapo_core.jobspec.parse import absolute_paths
from dapo_trainer.data.model_files import beyond_context, context
from dapo_trainer.data.sources import folder_at_hand
from dapo_trainer.plan.architecture import Architecture, known, known_context, of_folder
from dapo_trainer.plan.estimate import Estimate, estimate
from dapo_trainer.plan.gpu_sizes import Size, set_sizes
from dapo_trainer.plan.memory import DEFAULT_GPU, GPUS
from dapo_trainer.plan.plan_tables import (
    job_table,
    memory_table,
    pods_table,
    sizes_table,
    step_table,
    verl_table,
    warning_lines,
)
from dapo_trainer.verl_config import Paths, Placement, compose, overrides
from dapo_trainer.verl_config.placement import Device, detect_device


def gpu_kind(name: str | None) -> str | None:
    """Raises typer.BadParameter for a kind that is not in the table."""
    if name is not None and name not in GPUS:
        raise typer.BadParameter(f"{name} is not a known kind of GPU: use one of {', '.join(GPUS)}.")
    return name


def plan(
    job_file: Annotated[Path, typer.Argument(help="A DAPOJob as YAML.", metavar="JOB.YAML")],
    full: Annotated[bool, typer.Option("--full", help="Print only verl's whole configuration, as YAML.")] = False,
    gpu: Annotated[
        str | None,
        typer.Option(
            callback=gpu_kind,
            help=f"Kind of GPU to plan for: {', '.join(GPUS)}. Default: {DEFAULT_GPU} for the estimate of memory.",
        ),
    ] = None,
) -> None:
    """Show what a job would run, without starting anything."""
    raw = absolute_paths(read_mapping(job_file), job_file.resolve().parent)
    job = parse_job(raw)
    placement = Placement(_device(job, gpu))
    if full:
        config = compose(job.spec, placement, planned_paths(job))
        if placement.device == "cuda":
            set_sizes(config, job.spec, architecture(job), GPUS[gpu or DEFAULT_GPU])
        print(OmegaConf.to_yaml(config), end="")
        return
    verl, estimated, console = _verl(job, placement), _estimate(job, gpu or DEFAULT_GPU), Console()
    sizes = _sizes(job, gpu or DEFAULT_GPU) if placement.device == "cuda" else []
    for part in _parts(raw, job, verl, estimated, sizes):
        console.print(part, "")


def _device(job: DAPOJob, gpu: str | None) -> Device:
    """What the job would run on, wherever the plan is made.

    A job for one GPU also runs on the processors of a machine without one: what this machine has decides.
    """
    if "DAPO_DEVICE" in os.environ:
        return detect_device()
    trainer = job.spec.topology.trainer
    if trainer.gpus_per_pod == 0:
        return "cpu"
    return "cuda" if gpu is not None or trainer.gpus_per_pod * trainer.replicas > 1 else detect_device()


def planned_paths(job: DAPOJob) -> Paths:
    """Where a run's files would be; nothing is fetched for a plan."""
    data = job.spec.data
    return Paths(
        model=job.spec.model.source,
        train=tuple(file.source for file in data.train),
        validation=tuple(file.source for file in data.validation),
        checkpoints="<work folder>/checkpoints",
    )


def _verl(job: DAPOJob, placement: Placement) -> Table:
    paths = planned_paths(job)
    config = compose(job.spec, placement, paths)
    overridden = set(dict(leaves(job.spec.verl_overrides, into_lists=False)))
    keys = overridden | set(overrides(job.spec, placement, paths))
    return verl_table({key: OmegaConf.select(config, key) for key in keys}, overridden)


def architecture(job: DAPOJob) -> Architecture | None:
    """Of the model's config.json where this machine has it, or of a hub model in the table; nothing is fetched."""
    model = job.spec.model
    folder = folder_at_hand(model.source, model.revision)
    return known(model.source) if folder is None else of_folder(folder)


def model_context(job: DAPOJob) -> int | None:
    """The most tokens of prompt and response together, from where `architecture` looks; None where that says nothing.

    Raises ModelError when the model's folder on this machine has no config.json that can be read.
    """
    model = job.spec.model
    folder = folder_at_hand(model.source, model.revision)
    return known_context(model.source) if folder is None else context(folder)


def _beyond_context(job: DAPOJob) -> str | None:
    try:
        return beyond_context(job.spec, model_context(job))
    except ModelError:  # a job may be planned before its model is there
        return None


def _estimate(job: DAPOJob, gpu: str) -> Estimate | str:
    """Or the reason why there is none."""
    model = architecture(job)
    if not job.spec.topology.trainer.gpus_per_pod:
        return "Memory is estimated for GPUs only, and this job's trainer has none."
    if model is None:
        return (
            f"No estimate of memory: the architecture of {job.spec.model.source} is unknown here. Name the folder of a "
            "dense Qwen or Llama model."
        )
    config = compose(job.spec, Placement("cuda"), planned_paths(job))
    set_sizes(config, job.spec, model, GPUS[gpu])
    return estimate(job.spec, config, model, GPUS[gpu])


def _sizes(job: DAPOJob, gpu: str) -> list[Size]:
    """What a run on GPUs of this kind would add; empty for a job on processors."""
    if not job.spec.topology.trainer.gpus_per_pod:
        return []
    config = compose(job.spec, Placement("cuda"), planned_paths(job))
    return set_sizes(config, job.spec, architecture(job), GPUS[gpu])


def _parts(
    raw: dict[str, Any], job: DAPOJob, verl: Table, estimated: Estimate | str, sizes: list[Size]
) -> Iterator[RenderableType]:
    """In the order of printing: what cannot fit comes last, where a terminal still shows it."""
    yield pods_table(job)
    yield step_table(job)
    yield Text(estimated, "dim") if isinstance(estimated, str) else memory_table(estimated)
    if sizes:
        yield sizes_table(sizes)
    yield job_table(raw, job)
    yield verl
    yield from warning_lines(estimated.warnings if isinstance(estimated, Estimate) else ())
    if (sentence := _beyond_context(job)) is not None:
        yield from warning_lines([sentence])
