"""The process that evaluates: `python -m dapo_trainer.evaluate.worker`, started by `dapo evaluate`.

Reads the job (DAPO_JOB) and `request.json` in DAPO_WORK_DIR; writes `groups.json` and `responses.parquet` there, what
it is doing to heartbeat.json, and why it ended to its last words.
"""

import json
import logging
import os
import shutil
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from dapo_core.db import EventType
from dapo_core.errors import DapoError, ModelError
from dapo_core.jobspec import DAPOJob, load_job
from dapo_core.local_files import write_atomically
from dapo_core.objectstore import open_store
from dapo_core.run.deadlines import LOADING_ENGINES
from dapo_core.run.entries import Sample
from dapo_core.run.last_words import LastWords, ending
from dapo_core.run.reasons import ExitCode, Reason
from dapo_core.run.recording import RecordedGroup, RecordedResponse
from dapo_trainer.checkpoints.checkpoint_store import CheckpointStore
from dapo_trainer.data.model_files import context
from dapo_trainer.evaluate.request import Checkpoint, data_files
from dapo_trainer.evaluate.worker_process import EvaluationFolder
from dapo_trainer.groups.evaluated import Evaluated
from dapo_trainer.groups.sample_log import to_parquet
from dapo_trainer.process.trainer_process import Heartbeat, TrainerEnvironment, exit_now
from dapo_trainer.verl_adapter.session import Report

if TYPE_CHECKING:
    from omegaconf import DictConfig


class EvaluationProgress(Report):
    """The session's report: only the phase and the events are of interest here."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def phase(self, phase: str, step: int, total_steps: int, detail: str = "") -> None:
        Heartbeat(phase, step, total_steps, time.time(), detail).write(self._file)

    def event(self, type: EventType, reason: str, message: str, step: int | None = None) -> None:
        logging.getLogger(__name__).info("%s: %s", reason, message)

    def step(self, step: int, values: Mapping[str, float]) -> None: ...

    def samples(self, step: int, rows: Sequence[Sample]) -> None: ...

    def groups(
        self, step: int, groups: Sequence[RecordedGroup], responses: Callable[[], Sequence[RecordedResponse]]
    ) -> None: ...

    def checkpoint(self, step: int, folder: Path, metrics: Mapping[str, float]) -> None: ...


def _evaluate(environment: TrainerEnvironment) -> None:
    folder, job = EvaluationFolder.of(environment.work), load_job(environment.job_file)
    progress = EvaluationProgress(folder.heartbeat)
    checkpoint, step = folder.read_request(), None
    if checkpoint is not None:
        progress.phase("start", 0, 0, "fetching the checkpoint and merging its shards")
        step = _export(checkpoint, folder.model)
    progress.phase("start", 0, 0, "checking model and data")
    config = _compose(folder, job, environment.ray_address)
    from omegaconf import OmegaConf

    from dapo_trainer.verl_adapter.session import Session
    from dapo_trainer.verl_adapter.validation import evaluate

    settings = OmegaConf.to_container(config.dapo)
    assert isinstance(settings, dict)
    session = Session(progress, settings)

    def on_progress(done: int, of: int) -> None:
        progress.phase("validate", done, of, "sampling and scoring")

    progress.phase("start", 0, 0, "starting the engines")
    evaluated = evaluate(config, session, on_progress)
    _write(folder, step, evaluated, [sample for _, sample in session.samples])


def _prepare_processes(trainer: TrainerEnvironment) -> Path | None:
    """Returns the folder of the fork server, None without one. Call it before the first thread starts."""
    from dapo_trainer.verl_adapter import preload

    def loading() -> None:
        EvaluationProgress(EvaluationFolder.of(trainer.work).heartbeat).phase("start", 0, 0, LOADING_ENGINES)

    return preload.prepare_processes(loading, starts_ray=trainer.ray_address is None)


def _export(checkpoint: Checkpoint, target: Path) -> int:
    from dapo_trainer.checkpoint_tool.model_export import export

    checkpoints = CheckpointStore(open_store(checkpoint.store_url), checkpoint.run_id)
    return export(checkpoints, checkpoint.step, target, checkpoint.attempt).step


def _compose(folder: EvaluationFolder, job: DAPOJob, ray_address: str | None) -> "DictConfig":
    from dapo_trainer.preflight import fetch_model, write_files
    from dapo_trainer.verl_config import Placement, compose
    from dapo_trainer.verl_config.placement import Paths, detect_device

    model = fetch_model(job.spec)
    _check_context(job, model)
    sets = write_files(job.spec, model, data_files(job), folder.path)
    # verl's configuration names training files, which nothing reads here.
    paths = Paths(str(model), sets, sets, str(folder.path / "checkpoints"))
    return compose(job.spec, Placement(detect_device(), ray_address), paths)


def _check_context(job: DAPOJob, model: Path) -> None:
    """Raises ModelError when prompt and response together can be longer than the model's context."""
    most, prompt, response = context(model), job.spec.data.max_prompt_tokens, job.spec.batch.max_response_tokens
    if most is not None and prompt + response > most:
        raise ModelError(
            f"{prompt} tokens of prompt and {response} of response are more than the model's context of {most}: "
            "set --max-prompt-tokens and --max-response-tokens to at most that together."
        )


def _write(folder: EvaluationFolder, step: int | None, groups: Sequence[Evaluated], samples: Sequence[Sample]) -> None:
    folder.responses.write_bytes(to_parquet(samples))
    write_atomically(folder.groups, json.dumps({"step": step, "groups": [asdict(group) for group in groups]}))


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    code, words = ExitCode.DONE, LastWords(Reason.COMPLETED, "All prompts are evaluated.")
    environment, forks = TrainerEnvironment.of(os.environ), None
    try:
        forks = _prepare_processes(environment)
        _evaluate(environment)
    except Exception as error:
        code, words = ending(error)
        if not isinstance(error, DapoError):
            traceback.print_exc()
    if forks is not None:
        shutil.rmtree(forks, ignore_errors=True)
    exit_now(code, words)


if __name__ == "__main__":
    main()
