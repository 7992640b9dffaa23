"""Everything that can be refused before anything starts: model, data, reward function. No torch, no verl."""

from collections.abc import Sequence
from pathlib import Path

from dapo_core.errors import Problem, SpecError
from dapo_core.spec import DAPOJob, DAPOJobSpec

from dapo_trainer.data.rows import PromptFile, Row, check_lengths, write
from dapo_trainer.data.rows import check as check_rows
from dapo_trainer.data.sources import data_file, model_folder
from dapo_trainer.verl_config.placement import Paths

Checked = tuple[PromptFile, list[Row]]


def _check_reward(spec: DAPOJobSpec) -> None:
    if spec.reward.type != "custom" or spec.reward.module is None:
        return
    from dapo_trainer.rewards.sandbox import load

    try:
        load(spec.reward.module)
    except Exception as error:  # the user's module may raise anything when imported
        problem = f"spec.reward.module is {spec.reward.module}, which cannot be imported: {type(error).__name__}: {error}."
        raise SpecError([Problem("spec.reward.module", problem)]) from error


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


def check(job: DAPOJob) -> None:
    """Raises SpecError, ModelError or DataError; reads every row, loads no model."""
    _check_reward(job.spec)
    model_folder(job.spec.model.source, job.spec.model.revision)
    _data(job.spec)


def _check_tokens(spec: DAPOJobSpec, model: Path, data: Sequence[Checked]) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)

    def tokens(messages: list[dict[str, str]]) -> int:
        return len(tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False))

    for file, rows in data:
        check_lengths(file, rows, spec.data.max_prompt_tokens, tokens)


def fetch(job: DAPOJob, work: Path, resume_from: Path | None) -> Paths:
    """`check`, prompts counted in tokens, and the data written to `work` in the schema verl reads."""
    spec = job.spec
    _check_reward(spec)
    model = model_folder(spec.model.source, spec.model.revision)
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
