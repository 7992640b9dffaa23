"""What can be refused before anything starts: model, data, reward function. No torch, no verl."""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from dapo_core.errors import Problem, SpecError
from dapo_core.jobspec import DAPOJob, DAPOJobSpec
from dapo_core.jobspec.reward import ScoringRule
from dapo_trainer.data.model_files import (
    beyond_context,
    check_config,
    check_model,
    context,
    largest_tensor_bytes,
    token_counter,
)
from dapo_trainer.data.prompt_files import LONGEST_EPOCH, PromptFile, Row, check_lengths, draws, parquet_rows, write
from dapo_trainer.data.prompt_files import check as check_rows
from dapo_trainer.data.sources import data_file, model_folder
from dapo_trainer.rewards.verifier import READY, START_SECONDS, FunctionReference
from dapo_trainer.trackers.opening import check_trackers
from dapo_trainer.verl_config.placement import Paths


def check_reward(spec: DAPOJobSpec) -> None:
    """Import the user's functions where they will run: they may hang, exit, or see another path than this process.

    Raises SpecError.
    """
    additional = enumerate(spec.reward.additional)
    rules = [("spec.reward", spec.reward), *((f"spec.reward.additional[{i}]", rule) for i, rule in additional)]
    problems = [problem for field, rule in rules if (problem := _unloadable(field, rule)) is not None]
    if problems:
        raise SpecError(problems)


def _unloadable(field: str, rule: ScoringRule) -> Problem | None:
    name, value = ("file", rule.file) if rule.file is not None else ("module", rule.module)
    if rule.type != "custom" or value is None:
        return None
    command = FunctionReference(value, rule.per_group).command
    try:
        tried = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=START_SECONDS)
    except subprocess.TimeoutExpired:
        reason = f"its import takes more than {START_SECONDS:g} s"
    else:
        if tried.stdout == READY:
            return None
        said = tried.stderr.decode(errors="replace").strip().splitlines()
        reason = said[-1].strip() if said else f"its import ends with {tried.returncode}"
    remedy = "fix the module, or add its folder to PYTHONPATH." if name == "module" else "fix the file or its path."
    return Problem(f"{field}.{name}", f"{field}.{name} is {value}, which cannot be imported ({reason}): {remedy}")


def _files(spec: DAPOJobSpec) -> list[PromptFile]:
    train = [
        PromptFile(field := f"spec.data.train[{i}].source", "train", data_file(data.source, field))
        for i, data in enumerate(spec.data.train)
    ]
    return train + [
        PromptFile(field := f"spec.data.validation[{i}].source", data.name, data_file(data.source, field))
        for i, data in enumerate(spec.data.validation)
    ]


def check_files(spec: DAPOJobSpec, files: Sequence[PromptFile]) -> list[list[Row]]:
    """The rows of each file, every one of them checked. Raises DataError."""
    return [check_rows(file, spec.reward.type) for file in files]


def _check_count(spec: DAPOJobSpec, rows: int) -> None:
    """Raises SpecError when a step's prompts are more than all training rows: verl would have no step to train."""
    if rows < spec.batch.prompts:
        sentence = (
            f"spec.batch.prompts is {spec.batch.prompts}, but spec.data.train has only {rows} prompts: "
            f"add data, or set it to at most {rows}."
        )
        raise SpecError([Problem("spec.batch.prompts", sentence)])


def _check_context(spec: DAPOJobSpec, model: Path) -> None:
    """Raises SpecError when prompt and response together can be longer than the model's context: vLLM would refuse it
    after the model is loaded."""
    sentence = beyond_context(spec, context(model))
    if sentence is not None:
        raise SpecError([Problem("spec.batch.maxResponseTokens", sentence)])


def _check_weights(spec: DAPOJobSpec, rows: Sequence[int]) -> None:
    """Raises SpecError when weights make an epoch that is too long to be kept in memory."""
    if not spec.data.weighted:
        return
    weights = [item.weight or 1.0 for item in spec.data.train]
    prompts = sum(draws(rows, weights))
    if prompts > LONGEST_EPOCH:
        index = max(range(len(rows)), key=lambda i: rows[i] / weights[i])
        field = f"spec.data.train[{index}].weight"
        sentence = (
            f"{field} is {weights[index]:g} for {rows[index]:,} prompts: until each of them was drawn once, an epoch "
            f"has {prompts:,} prompts, more than {LONGEST_EPOCH:,}: raise it, or use fewer prompts of this file."
        )
        raise SpecError([Problem(field, sentence)])


def fetch_model(spec: DAPOJobSpec, *, weights: bool = True) -> Path:
    """The job's model in a folder of this machine, with all its files, or only tokenizer and configuration: a head
    loads no weights, and need not have them on its disk. Raises ModelError."""
    folder = model_folder(spec.model.source, spec.model.revision, weights=weights)
    check_model(folder) if weights else check_config(folder)
    return folder


def check(job: DAPOJob) -> None:
    """Check everything that needs no model in memory. Raises SpecError, ModelError or DataError."""
    check_reward(job.spec)
    check_trackers(job.spec.trackers, os.environ)
    _check_context(job.spec, fetch_model(job.spec))
    rows = [len(each) for each in check_files(job.spec, _files(job.spec))][: len(job.spec.data.train)]
    _check_count(job.spec, sum(rows))
    _check_weights(job.spec, rows)


def write_files(spec: DAPOJobSpec, model: Path, files: Sequence[PromptFile], work: Path) -> tuple[str, ...]:
    """Check the files, their prompts counted in tokens, and write them in the schema that verl reads.

    Returns the paths below `work`, in the order of `files`. Raises DataError.
    """
    checked = check_files(spec, files)
    count = token_counter(model)
    for file, rows in zip(files, checked, strict=True):
        check_lengths(file, rows, spec.data.max_prompt_tokens, count)
    return tuple(str(write(rows, work / "data" / f"{index}.parquet")) for index, rows in enumerate(checked))


def fetch(job: DAPOJob, work: Path, *, weights: bool = True) -> Paths:
    """`check` and `write_files`. Returns what verl's configuration names. `weights`: as in `fetch_model`."""
    spec = job.spec
    check_reward(spec)
    check_trackers(spec.trackers, os.environ)
    model = fetch_model(spec, weights=weights)
    _check_context(spec, model)
    written = write_files(spec, model, _files(spec), work)
    train = len(spec.data.train)
    rows = [parquet_rows(Path(file)) for file in written[:train]]
    _check_count(spec, sum(rows))
    _check_weights(spec, rows)
    return Paths(
        model=str(model),
        train=written[:train],
        validation=written[train:],
        checkpoints=str(work / "checkpoints"),
        largest_tensor_bytes=largest_tensor_bytes(model) if weights else 0,
    )
