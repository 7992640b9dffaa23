"""Everything that can be refused before anything starts: model, data, reward function. No torch, no verl."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

from dapo_core.errors import Problem, SpecError
from dapo_core.jobspec import DAPOJob, DAPOJobSpec
from dapo_trainer.data.model_files import check_model
from dapo_trainer.data.rows import PromptFile, Row, check_lengths, write
from dapo_trainer.data.rows import check as check_rows
from dapo_trainer.data.sources import data_file, model_folder
from dapo_trainer.data.tokens import token_counter
from dapo_trainer.rewards.verifier import READY, START_SECONDS, sandbox_command
from dapo_trainer.verl_config.placement import Paths

Checked = tuple[PromptFile, list[Row]]


def check_reward(spec: DAPOJobSpec) -> None:
    """Import the user's function where it will run: it may hang, exit, or find another path than this process."""
    if spec.reward.type != "custom" or spec.reward.module is None:
        return
    command = sandbox_command(spec.reward.module)
    try:
        tried = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=START_SECONDS)
    except subprocess.TimeoutExpired:
        _refuse_reward(spec.reward.module, f"its import takes more than {START_SECONDS:g} s")
        return
    if tried.stdout != READY:
        said = tried.stderr.decode(errors="replace").strip().splitlines()
        _refuse_reward(spec.reward.module, said[-1].strip() if said else f"its import ends with {tried.returncode}")


def _refuse_reward(module: str, reason: str) -> None:
    remedy = "mend the module, or put its folder on PYTHONPATH."
    sentence = f"spec.reward.module is {module}, which cannot be imported ({reason}): {remedy}"
    raise SpecError([Problem("spec.reward.module", sentence)])


def _files(spec: DAPOJobSpec) -> list[PromptFile]:
    train = [
        PromptFile(field := f"spec.data.train[{i}].source", "train", data_file(data.source, field))
        for i, data in enumerate(spec.data.train)
    ]
    return train + [
        PromptFile(field := f"spec.data.validation[{i}].source", data.name, data_file(data.source, field))
        for i, data in enumerate(spec.data.validation)
    ]


def _data(spec: DAPOJobSpec) -> list[Checked]:
    return [(file, check_rows(file, spec.reward.type)) for file in _files(spec)]


def _model(spec: DAPOJobSpec) -> Path:
    folder = model_folder(spec.model.source, spec.model.revision)
    check_model(folder)
    return folder


def check(job: DAPOJob) -> None:
    """Raises SpecError, ModelError or DataError; reads every row, loads no model."""
    check_reward(job.spec)
    _model(job.spec)
    _data(job.spec)


def _check_tokens(spec: DAPOJobSpec, model: Path, data: Sequence[Checked]) -> None:
    count = token_counter(model)
    for file, rows in data:
        check_lengths(file, rows, spec.data.max_prompt_tokens, count)


def fetch(job: DAPOJob, work: Path, resume_from: Path | None) -> Paths:
    """`check`, prompts counted in tokens, and the data written to `work` in the schema verl reads."""
    spec = job.spec
    check_reward(spec)
    model = _model(spec)
    data = _data(spec)
    _check_tokens(spec, model, data)
    written = [str(write(rows, work / "data" / f"{index}.parquet")) for index, (_, rows) in enumerate(data)]
    train = len(spec.data.train)
    return Paths(
        model=str(model),
        train=tuple(written[:train]),
        validation=tuple(written[train:]),
        checkpoints=str(work / "checkpoints"),
        resume_from=None if resume_from is None else str(resume_from),
    )
