"""The files of an evaluation, checked as training checks its own, and written in the schema that verl reads."""

from pathlib import Path

from dapo_core.jobspec import DAPOJob
from dapo_trainer.data.model_files import check_model
from dapo_trainer.data.rows import PromptFile, check_lengths, write
from dapo_trainer.data.rows import check as check_rows
from dapo_trainer.data.sources import data_file, model_folder
from dapo_trainer.data.tokens import token_counter
from dapo_trainer.preflight import check_reward
from dapo_trainer.verl_config.placement import Paths


def files(job: DAPOJob) -> list[PromptFile]:
    """Where the sets lie on this machine. Raises DataError naming `--data` and the remedy."""
    return [PromptFile("--data", v.name, data_file(v.source, "--data")) for v in job.spec.data.validation]


def check(job: DAPOJob) -> None:
    """Everything that can be refused without the model. Raises SpecError or DataError; reads every row."""
    check_reward(job.spec)
    for file in files(job):
        check_rows(file, job.spec.reward.type)


def fetch(job: DAPOJob, work: Path) -> Paths:
    """`check` with prompts counted in tokens, and the sets written to `work`. Raises ModelError too."""
    model = model_folder(job.spec.model.source)
    check_model(model)
    count, written = token_counter(model), []
    for file in files(job):
        rows = check_rows(file, job.spec.reward.type)
        check_lengths(file, rows, job.spec.data.max_prompt_tokens, count)
        written.append(str(write(rows, work / "data" / f"{file.set_name}.parquet")))
    # verl's configuration names training files, which nothing reads here.
    return Paths(str(model), tuple(written), tuple(written), str(work / "checkpoints"))
