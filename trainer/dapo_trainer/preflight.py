"""Everything that can be refused before anything starts: model, data, reward function. No torch, no verl."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

from dapo_core.errors import ModelError, Problem, SpecError
from dapo_core.spec import DAPOJob, DAPOJobSpec
from dapo_trainer.data.model_files import check_model
from dapo_trainer.data.rows import PromptFile, Row, check_lengths, write
from dapo_trainer.data.rows import check as check_rows
from dapo_trainer.data.sources import data_file, model_folder
from dapo_trainer.rewards.verifier import READY, START_SECONDS, sandbox_command
from dapo_trainer.verl_config.placement import Paths

Checked = tuple[PromptFile, list[Row]]


def _check_reward(spec: DAPOJobSpec) -> None:
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
    _check_reward(job.spec)
    _model(job.spec)
    _data(job.spec)


_GREETING = [{"role": "user", "content": "1+1?"}]


def _check_tokens(spec: DAPOJobSpec, model: Path, data: Sequence[Checked]) -> None:
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(model)
        tokenizer.apply_chat_template(_GREETING, add_generation_prompt=True, return_dict=False)
    except Exception as error:  # a missing file, a broken one or no chat template: each is an error of its own kind
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise ModelError(
            f"spec.model.source: {model} has no tokenizer with a chat template ({reason}): add its tokenizer files."
        ) from error

    def tokens(messages: list[dict[str, str]]) -> int:
        return len(tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False))

    for file, rows in data:
        check_lengths(file, rows, spec.data.max_prompt_tokens, tokens)


def fetch(job: DAPOJob, work: Path, resume_from: Path | None) -> Paths:
    """`check`, prompts counted in tokens, and the data written to `work` in the schema verl reads."""
    spec = job.spec
    _check_reward(spec)
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
