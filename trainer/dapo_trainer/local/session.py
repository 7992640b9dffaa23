"""One call of `dapo run` or `dapo resume`: everything put together around a supervisor."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from rich.console import Console

from dapo_core.db import MetadataWriter, RunRow, open_reader, open_writer, shown_url, upgrade
from dapo_core.errors import Problem, SpecError
from dapo_core.jobspec import DAPOJob
from dapo_core.naming import checkpoints_prefix
from dapo_core.objectstore import open_store, probe
from dapo_core.run.home import Home
from dapo_trainer.local.answers import answers
from dapo_trainer.local.board import Board
from dapo_trainer.local.display import UNREADABLE, Curves, discard_output, displayed, glyphs_of
from dapo_trainer.local.endings import log_tail
from dapo_trainer.local.feed import SpoolFeed
from dapo_trainer.local.history import with_history
from dapo_trainer.local.overview import first_view
from dapo_trainer.local.record import StoreRecord
from dapo_trainer.local.rules import JobGuard, JobPolicy
from dapo_trainer.local.summary import Place, summary
from dapo_trainer.local.supervisor import Outcome, Supervisor
from dapo_trainer.local.view_model import View
from dapo_trainer.process.lock import hold
from dapo_trainer.process.run_folder import RunFolder, replace_text, shown_path
from dapo_trainer.process.signals import StopRequest, stop_requests
from dapo_trainer.process.trainer_process import TRAINER, Places


@dataclass(frozen=True)
class Show:
    """How a run is shown."""

    console: Console
    plain: bool = False
    quiet: bool = False

    @property
    def is_plain(self) -> bool:
        """Lines instead of the live view: asked for, or the output is no terminal that could show it."""
        return self.plain or not self.console.is_terminal or self.console.is_dumb_terminal


def work_on(home: Home, run: RunFolder, job: DAPOJob, show: Show, command: Sequence[str] = TRAINER) -> int:
    """Train until the run ends or is stopped, tell how it went, and return the exit code of `dapo run`.

    Raises RunBusyError when another process works on the run, StoreError when a store can't be used.
    """
    places = Places(home.metadata_url, job.spec.checkpoints.uri or home.store_url)
    probe(open_store(places.store_url), f"{run.run_id}/")
    with hold(run.lock, run.run_id), stop_requests() as stop:
        _same_database(run, places.metadata_url)
        run.write_job(job)
        upgrade(places.metadata_url)
        replace_text(run.database, shown_url(places.metadata_url) + "\n")
        writer = open_writer(places.metadata_url)
        _announce(writer, run, job)
        began = time.time()
        board, outcome = _supervise(run, job, places, StoreRecord(writer, run.run_id), began, stop, show, command)
        _tell(show, run, places, board.view, outcome, time.time() - began)
    return outcome.exit_code


def _same_database(run: RunFolder, url: str) -> None:
    """A run that goes on in another database would have half of its record in each."""
    if run.database.exists() and (known := run.database.read_text().strip()) != shown_url(url):
        sentence = (
            f"{run.run_id} is recorded in {known}, not in {shown_url(url)}: set DAPO_METADATA_URL to where it is, or "
            f"remove {run.database} to go on in another database."
        )
        raise SpecError([Problem("RUN", sentence)])


def _announce(writer: MetadataWriter, run: RunFolder, job: DAPOJob) -> None:
    spec = job.model_dump(by_alias=True, mode="json", exclude_none=True)
    row = RunRow(
        run.run_id,
        name=job.metadata.name,
        namespace=job.metadata.namespace,
        spec=spec,
        created_at=time.time(),
        total_steps=job.spec.schedule.steps,
    )
    writer.create_run(row)


def _supervise(
    run: RunFolder,
    job: DAPOJob,
    places: Places,
    record: StoreRecord,
    began: float,
    stop: StopRequest,
    show: Show,
    command: Sequence[str],
) -> tuple[Board, Outcome]:
    reader = open_reader(places.metadata_url)
    view = with_history(first_view(run.run_id, job, began), reader)
    guard = JobGuard(job.spec, record)
    guard.remember(reader, run.run_id)
    with displayed(show.console, plain=show.is_plain, quiet=show.quiet) as display:
        board = Board(view, display)
        supervisor = Supervisor(
            run=run,
            job=job,
            places=places,
            board=board,
            record=record,
            policy=JobPolicy(job.spec, began),
            guard=guard,
            feed=lambda folder: SpoolFeed(folder.spool),
            stop=stop,
            command=command,
        )
        return board, supervisor.work()


def _tell(show: Show, run: RunFolder, places: Places, view: View, outcome: Outcome, seconds: float) -> None:
    newest = run.attempts()[-1]
    # A trainer that left its own words needs no quotation of its log.
    unexplained = outcome.mood == "failed" and not newest.last_words.exists()
    text = summary(
        view,
        outcome,
        seconds,
        answers=answers(places.metadata_url, places.store_url, run.run_id),
        places=_files(run, places),
        log_tail=log_tail(newest.log) if unexplained else [],
        curves=Curves(view, glyphs_of(show.console)) if view.step and not (show.is_plain or show.quiet) else None,
    )
    try:
        show.console.print(text)
        show.console.file.flush()
    except UNREADABLE:
        discard_output()


def _files(run: RunFolder, places: Places) -> list[Place]:
    checkpoints = open_store(places.store_url).address(checkpoints_prefix(run.run_id).rstrip("/"))
    if checkpoints.startswith("file://"):
        checkpoints = shown_path(Path(unquote(urlsplit(checkpoints).path)))
    return [
        Place("run", shown_path(run.path)),
        Place("log", shown_path(run.attempts()[-1].log)),
        Place("checkpoints", checkpoints),
        Place("database", _database(places.metadata_url)),
    ]


def _database(url: str) -> str:
    return shown_path(Path(url.removeprefix("sqlite:///"))) if url.startswith("sqlite:///") else shown_url(url)
