"""The worker process of an evaluation: its folder, and how it is started, watched and ended to its last child."""

import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from dapo_core.errors import DapoError, Problem, SpecError, StoppedError
from dapo_core.run import last_words
from dapo_core.run.reasons import ExitCode, error_for
from dapo_trainer.evaluate.request import Checkpoint
from dapo_trainer.groups.evaluated import Evaluated
from dapo_trainer.process.run_folder import AttemptFolder, RunFolder, shown_path
from dapo_trainer.process.signals import stop_requests
from dapo_trainer.process.temporary_folder import temporary_folder
from dapo_trainer.process.trainer_process import (
    Heartbeat,
    StoreUrls,
    TrainerProcess,
    log_tail,
    trainer_environment,
    why,
)
from dapo_trainer.process.tree import ProcessTree
from dapo_trainer.rewards.verdict import Verdict

WORKER = (sys.executable, "-m", "dapo_trainer.evaluate.worker")
TICK_SECONDS = 0.1
PARTING_SECONDS = 3.0


class EvaluationFolder(AttemptFolder):
    """`{home}/evaluations/{id}/attempt-1`: what `dapo evaluate` and its worker pass to each other."""

    @classmethod
    def of(cls, path: Path) -> "EvaluationFolder":
        return cls(1, path)

    @property
    def request(self) -> Path:
        return self.path / "request.json"

    @property
    def model(self) -> Path:
        """The model that is merged from a checkpoint's shards."""
        return self.path / "model"

    @property
    def groups(self) -> Path:
        return self.path / "groups.json"

    @property
    def responses(self) -> Path:
        """Every response with its verdict, as `dapo_trainer.groups.sample_log` writes them."""
        return self.path / "responses.parquet"

    def write_request(self, checkpoint: Checkpoint | None) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        self.request.write_text(json.dumps(None if checkpoint is None else asdict(checkpoint)))

    def read_request(self) -> Checkpoint | None:
        content = json.loads(self.request.read_text())
        return None if content is None else Checkpoint(**content)

    def read_groups(self) -> tuple[int | None, list[Evaluated]]:
        """The checkpoint's step (None for a plain model), and every evaluated prompt."""
        content = json.loads(self.groups.read_text())
        return content["step"], [
            Evaluated(**{**group, "verdicts": [Verdict(**verdict) for verdict in group["verdicts"]]})
            for group in content["groups"]
        ]


def run_worker(run: RunFolder, stores: StoreUrls, console: Console, command: Sequence[str] = WORKER) -> None:
    """Evaluate as the files in the run's folder say. Raises DapoError with the worker's own sentence, StoppedError."""
    attempt = run.attempt(1)
    tree = ProcessTree.of(run)
    with stop_requests() as stop, _shown(console) as show, temporary_folder() as temporary:
        environment = trainer_environment(run, attempt, stores, temporary.environment(os.environ))
        process = TrainerProcess(command, environment, attempt, inherits=[temporary.lock])
        tree.started(process.pid)
        try:
            while (code := process.exit_code()) is None and not stop.asked:
                show(Heartbeat.read(attempt.heartbeat))
                tree.look()
                time.sleep(TICK_SECONDS)
            show(Heartbeat.read(attempt.heartbeat))
        finally:
            tree.end(0.0 if stop.asked else PARTING_SECONDS)
            process.exit_code()  # collects the process, however it ended
        if code not in (None, ExitCode.DONE):
            temporary.keep_logs(attempt.ray_logs)
    if code is None:
        raise StoppedError("Stopped. Nothing was recorded.")
    if code != ExitCode.DONE:
        raise _error(code, attempt)


def _error(code: int, attempt: AttemptFolder) -> DapoError:
    """What ended the worker, as the error that a user would get here."""
    words = last_words.read(attempt.last_words)
    _, message = why(code, words)
    if words is None or code in (ExitCode.CRASHED, ExitCode.DISTRIBUTED):
        log = "\n".join(log_tail(attempt.log))
        message = f"{message}\n{log}\nThe whole log is in {shown_path(attempt.log)}."
    if code == ExitCode.SPEC:
        return SpecError([Problem("evaluation", message)])
    return error_for(code)(message)


@contextmanager
def _shown(console: Console) -> Iterator["_Shown"]:
    """A bar on a terminal, a line for each phase elsewhere."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        yield _Shown(console, bar)


class _Shown:
    def __init__(self, console: Console, bar: Progress) -> None:
        self._console, self._bar = console, bar
        self._task = bar.add_task("starting", total=None)
        self._said = ""

    def __call__(self, beat: Heartbeat | None) -> None:
        if beat is None:
            return
        self._bar.update(self._task, description=beat.detail, completed=beat.step, total=beat.total_steps or None)
        if beat.detail != self._said and not self._console.is_terminal:
            self._console.print(beat.detail)
        self._said = beat.detail
