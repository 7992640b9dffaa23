"""`dapo check`: jobs for GPUs against the installed packages, in a table for each; nothing is started or fetched."""

import json
import logging
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import typer
from omegaconf import DictConfig
from rich.console import Console
from rich.table import Table

from dapo_core.errors import DapoError
from dapo_core.jobspec import DAPOJob, load_job
from dapo_trainer.data.model_files import beyond_context
from dapo_trainer.data.sources import folder_at_hand
from dapo_trainer.plan.architecture import config_json, known_context
from dapo_trainer.plan.command import architecture, gpu_kind, model_context, planned_paths
from dapo_trainer.plan.estimate import estimate, gib
from dapo_trainer.plan.gpu_sizes import set_sizes
from dapo_trainer.plan.memory import DEFAULT_GPU, GPUS, GpuKind, head_memory
from dapo_trainer.verl_adapter import environment
from dapo_trainer.verl_config import Placement, compose

# Nothing here calls a GPU, so these remain for the first minutes of a run (`dapo doctor` on the node looks at some).
NEEDS_A_DEVICE: Final = (
    "the driver, and CUDA's libraries under load",
    "the kernels of attention (torch.nn.attention.varlen) and of vLLM",
    "NCCL: process groups, weight transfer, RDMA",
    "FSDP's memory while it loads and trains",
    "vLLM: profile run, size of the KV cache, CUDA graphs, sleep and wake-up",
)
LONGEST_ERROR: Final = 500


@dataclass(frozen=True)
class Checked:
    """One line of the table: what was checked, whether it is as it has to be, and what was seen."""

    name: str
    passed: bool
    seen: str


def check(
    job_files: Annotated[list[Path], typer.Argument(help="DAPOJobs as YAML.", metavar="JOB.YAML")],
    gpu: Annotated[
        str, typer.Option(callback=gpu_kind, help=f"Kind of GPU to check for: {', '.join(GPUS)}.")
    ] = DEFAULT_GPU,
) -> None:
    """Check jobs for GPUs against the installed packages.

    The configuration is composed for CUDA; verl validates it, the model is built without memory, vLLM makes its
    configuration, and memory is estimated. Exit code 1 when a check fails.
    """
    console, jobs = Console(), [load_job(file) for file in job_files]
    # Before verl or vLLM is imported; nothing is looked up at a hub.
    logging.disable(logging.WARNING)
    warnings.filterwarnings("ignore", category=UserWarning, module=r"verl\.")  # of its engines that no job uses
    os.environ.update(environment("cuda") | {"VERL_PLATFORM": "nvidia", "HF_HUB_OFFLINE": "1"})
    failed = _print(console, "packages", list(_packages(GPUS[gpu])))
    for file, job in zip(job_files, jobs, strict=True):
        failed += _print(console, f"{file.name}: {job.metadata.name}", list(_job(job, GPUS[gpu])))
    console.print("Not checked, because it needs a GPU: " + "; ".join(NEEDS_A_DEVICE) + ".")
    if failed:
        console.print(f"{failed} checks failed.", style="red")
        raise typer.Exit(1)


def _print(console: Console, title: str, lines: list[Checked]) -> int:
    """How many failed."""
    table = Table("check", "", "seen", title=title, title_justify="left")
    for line in lines:
        table.add_row(line.name, "ok" if line.passed else "FAILED", line.seen, style=None if line.passed else "red")
    console.print(table, "")
    return sum(not line.passed for line in lines)


def attempted(name: str, look: Callable[[], str]) -> Checked:
    """What `look` returns, or what it raises: whatever that is, the job would have failed with it."""
    try:
        return Checked(name, True, look())
    except Exception as error:
        return Checked(name, False, f"{type(error).__name__}: {' '.join(str(error).split())}"[:LONGEST_ERROR])


def _packages(gpu: GpuKind) -> Iterator[Checked]:
    from dapo_trainer.verl_adapter import stack_checks

    def platform() -> str:
        stack_checks.describe(gpu)
        return gpu.name

    yield attempted("GPU, described", platform)
    yield attempted("modules", stack_checks.modules_import)
    yield attempted("environment", stack_checks.environment_is_known)


def _job(job: DAPOJob, gpu: GpuKind) -> Iterator[Checked]:
    try:
        config = compose(job.spec, Placement("cuda"), planned_paths(job))
        set_sizes(config, job.spec, architecture(job), gpu)
    except DapoError as error:
        yield Checked("configuration", False, str(error))
        return
    yield attempted("memory", lambda: _memory(job, config, gpu))
    yield attempted("context", lambda: _context(job))
    yield from _engines(job, config)


def _engines(job: DAPOJob, config: DictConfig) -> Iterator[Checked]:
    from dapo_trainer.verl_adapter import stack_checks

    with tempfile.TemporaryDirectory(prefix="dapo-check-") as folder:
        config = stack_checks.without_tokenizer(config)
        config.actor_rollout_ref.model.path = _model_folder(job, Path(folder))
        yield attempted("configuration", lambda: stack_checks.verl_accepts(config))
        yield attempted("model", lambda: stack_checks.model_builds(config))
        yield attempted("weight transfer", lambda: stack_checks.weights_are_transferred(config))
        yield attempted("vLLM", lambda: stack_checks.vllm_accepts(config))


def _model_folder(job: DAPOJob, folder: Path) -> str:
    """With the config.json of the job's model: its own, or in `folder` the one that its architecture gives."""
    source, model = job.spec.model.source, architecture(job)
    at_hand = folder_at_hand(source, job.spec.model.revision)
    if at_hand is not None or model is None:
        return str(at_hand or source)
    (folder / "config.json").write_text(json.dumps(config_json(model, known_context(source) or 0)))
    return str(folder)


def _memory(job: DAPOJob, config: DictConfig, gpu: GpuKind) -> str:
    """The sums. Raises ValueError with what does not fit."""
    model = architecture(job)
    if model is None:
        raise ValueError(f"the architecture of {job.spec.model.source} is unknown: name the folder of a dense model")
    found, head = estimate(job.spec, config, model, gpu), head_memory(job.spec)
    if found.warnings:
        raise ValueError(" ".join(found.warnings))
    trainer, rollout, asked = found.training, found.generation, job.spec.topology.head.resources.memory
    sums = {
        "training": (trainer.total, gib(gpu.memory), vars(trainer)),
        "generating": (rollout.total, gib(gpu.memory), {k: v for k, v in vars(rollout).items() if k != "tokens"}),
        "head": (head.total, asked, vars(head)),
    }
    return "\n".join(
        f"{name}: {' + '.join(f'{cause} {gib(part)}' for cause, part in parts.items() if part)}"
        f" = {gib(total)} of {limit}"
        for name, (total, limit, parts) in sums.items()
    ).replace("_", " ")


def _context(job: DAPOJob) -> str:
    """Raises ValueError when prompt and response together are longer than what the model was made for."""
    most = model_context(job)
    if most is None:
        return "not known: config.json is not on this machine, or names no number"
    if (sentence := beyond_context(job.spec, most)) is not None:
        raise ValueError(sentence)
    prompt, response = job.spec.data.max_prompt_tokens, job.spec.batch.max_response_tokens
    return f"{prompt:,} + {response:,} = {prompt + response:,} tokens of the model's {most:,}"
