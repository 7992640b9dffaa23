"""The process that evaluates: `python -m dapo_trainer.evaluate.worker`, started by `dapo evaluate`.

Reads the job (DAPO_JOB) and `request.json` in DAPO_WORK_DIR; writes `groups.json` and `responses.parquet` there, and
says on the way what it does (heartbeat.json) and at the end why it ended (last words).
"""

import json
import logging
import os
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dapo_core.db import EventType
from dapo_core.errors import DapoError, ModelError
from dapo_core.jobspec import DAPOJob, load_job
from dapo_core.objectstore import open_store
from dapo_core.run.last_words import LastWords, ending
from dapo_core.run.reasons import ExitCode, Reason
from dapo_core.run.samples import Sample
from dapo_trainer.checkpoints.store import CheckpointStore
from dapo_trainer.evaluate.files import WorkFolder
from dapo_trainer.evaluate.target import Checkpoint
from dapo_trainer.evaluation import Evaluated
from dapo_trainer.process.run_folder import replace_text
from dapo_trainer.samples import to_parquet


class Progress:
    """The session's report: only the phase is news here."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def phase(self, phase: str, step: int, total_steps: int, detail: str = "") -> None:
        beat = {"phase": phase, "step": step, "totalSteps": total_steps, "ts": time.time(), "detail": detail}
        replace_text(self._file, json.dumps(beat))

    def step(self, step: int, values: Mapping[str, float]) -> None: ...

    def event(self, type: EventType, reason: str, message: str, step: int | None = None) -> None:
        logging.getLogger(__name__).info("%s: %s", reason, message)

    def samples(self, step: int, rows: Sequence[Sample]) -> None: ...

    def checkpoint(self, step: int, folder: Path, metrics: Mapping[str, float]) -> None: ...


def _evaluate(folder: WorkFolder, job: DAPOJob) -> None:
    progress = Progress(folder.heartbeat)
    checkpoint, step = folder.read_request(), None
    _set_environment()
    if checkpoint is not None:
        progress.phase("start", 0, 0, "fetching the checkpoint and putting its shards together")
        step = _export(checkpoint, folder.model)
    progress.phase("start", 0, 0, "checking model and data")
    config = _compose(folder, job)
    progress.phase("start", 0, 0, "loading verl and vLLM")
    from omegaconf import OmegaConf

    from dapo_trainer.verl_adapter.evaluator import evaluate
    from dapo_trainer.verl_adapter.session import Session

    settings = OmegaConf.to_container(config.dapo)
    assert isinstance(settings, dict)
    session = Session(progress, settings)

    def told(done: int, of: int) -> None:
        progress.phase("validate", done, of, "sampling and judging")

    progress.phase("start", 0, 0, "starting the engines")
    evaluated = evaluate(config, session, told)
    _write(folder, step, evaluated, [sample for _, sample in session.samples])


def _set_environment() -> None:
    from dapo_trainer.verl_adapter import environment
    from dapo_trainer.verl_config.device import detect

    os.environ.update(environment(detect()))


def _export(checkpoint: Checkpoint, target: Path) -> int:
    from dapo_trainer.checkpoint_tool.export import export

    return export(CheckpointStore(open_store(checkpoint.store_url), checkpoint.run_id), checkpoint.step, target).step


def _compose(folder: WorkFolder, job: DAPOJob) -> Any:
    from dapo_trainer.evaluate.inputs import fetch
    from dapo_trainer.verl_config import Placement, compose
    from dapo_trainer.verl_config.device import detect

    paths = fetch(job, folder.path)
    _check_context(job, Path(paths.model))
    return compose(job.spec, Placement(detect(), os.environ.get("RAY_ADDRESS")), paths)


def _check_context(job: DAPOJob, model: Path) -> None:
    """Raises ModelError when prompt and response can be longer together than what the model was made for."""
    context = json.loads((model / "config.json").read_text()).get("max_position_embeddings")
    prompt, response = job.spec.data.max_prompt_tokens, job.spec.batch.max_response_tokens
    if context is not None and prompt + response > context:
        raise ModelError(
            f"{prompt} tokens of prompt and {response} of response are more than the model's context of {context}: "
            "set --max-prompt-tokens and --max-response-tokens to at most that together."
        )


def _write(folder: WorkFolder, step: int | None, evaluated: Sequence[Evaluated], samples: Sequence[Sample]) -> None:
    folder.responses.write_bytes(to_parquet(samples))
    replace_text(folder.groups, json.dumps({"step": step, "groups": [asdict(group) for group in evaluated]}))


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    folder = WorkFolder(Path(os.environ["DAPO_WORK_DIR"]))
    code, words = ExitCode.DONE, LastWords(Reason.COMPLETED, "All prompts are evaluated.")
    try:
        _evaluate(folder, load_job(Path(os.environ["DAPO_JOB"])))
    except Exception as error:
        code, words = ending(error)
        if not isinstance(error, DapoError):
            traceback.print_exc()
    words.write()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # threads of Ray and vLLM outlive a failed evaluation


if __name__ == "__main__":
    main()
