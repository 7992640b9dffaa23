"""One call of `dapo run` or `dapo resume`: a supervisor, and everything it needs."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from rich.console import Console

from dapo_core.db import MetadataWriter, RunRow, open_reader, open_writer, shown_url, upgrade
from dapo_core.errors import Problem, SpecError
from dapo_core.jobspec import DAPOJob
from dapo_core.local_files import write_atomically
from dapo_core.naming import checkpoints_prefix
from dapo_core.objectstore import open_store, probe
from dapo_core.run.home import Home
from dapo_trainer.local.display import UNREADABLE, Curves, Presenter, discard_output, displayed, glyphs_of
from dapo_trainer.local.record import GuardWatch, StoreRecord
from dapo_trainer.local.run_view import RunView, first_view, with_history
from dapo_trainer.local.summary import compared_responses, summary
from dapo_trainer.local.supervisor import RunOutcome, Supervisor
from dapo_trainer.process.run_folder import RunFolder, hold, shown_path
from dapo_trainer.process.signals import StopRequest, stop_requests
from dapo_trainer.process.trainer_process import TRAINER, StoreUrls, log_tail


@dataclass(frozen=True)
class Show:
    """How a run is shown."""

    console: Console
    plain: bool = False
    quiet: bool = False

    @property
    def is_plain(self) -> bool:
        """Lines instead of the live view: requested, or the output is not a terminal that can show it."""
        return self.plain or not self.console.is_terminal or self.console.is_dumb_terminal


def work_on(home: Home, run: RunFolder, job: DAPOJob, show: Show, command: Sequence[str] = TRAINER) -> int:
    """Train until the run ends or is stopped, and print how it went. Returns the exit code of `dapo run`.

    Raises RunBusyError when another process works on the run, StoreError when a store cannot be used.
    """
    stores = StoreUrls(home.metadata_url, job.spec.checkpoints.uri or home.store_url)
    probe(open_store(stores.objects), f"{run.run_id}/")
    with hold(run.lock, run.run_id), stop_requests() as stop:
        _same_database(run, stores.metadata)
        run.write_job(job)
        upgrade(stores.metadata)
        write_atomically(run.database, shown_url(stores.metadata) + "\n")
        writer = open_writer(stores.metadata)
        _announce(writer, run, job)
        began = time.time()
        presenter, outcome = _supervise(run, job, stores, StoreRecord(writer, run.run_id), began, stop, show, command)
        _print_summary(show, run, stores, presenter.view, outcome, time.time() - began)
    return outcome.exit_code


def _same_database(run: RunFolder, url: str) -> None:
    """A run that continued in another database would have half of its record in each."""
    if run.database.exists() and (known := run.database.read_text().strip()) != shown_url(url):
        sentence = (
            f"{run.run_id} is recorded in {known}, not in {shown_url(url)}: set DAPO_METADATA_URL to that database, or "
            f"remove {run.database} to continue in another one."
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
    stores: StoreUrls,
    record: StoreRecord,
    began: float,
    stop: StopRequest,
    show: Show,
    command: Sequence[str],
) -> tuple[Presenter, RunOutcome]:
    reader = open_reader(stores.metadata)
    view = with_history(first_view(run.run_id, job, began), reader)
    guards = GuardWatch(job.spec, record)
    guards.remember(reader, run.run_id)
    with displayed(show.console, plain=show.is_plain, quiet=show.quiet) as display:
        presenter = Presenter(view, display)
        supervisor = Supervisor(
            run=run,
            job=job,
            stores=stores,
            presenter=presenter,
            record=record,
            guards=guards,
            started_at=began,
            stop=stop,
            command=command,
        )
        return presenter, supervisor.work()


def _print_summary(
    show: Show, run: RunFolder, stores: StoreUrls, view: RunView, outcome: RunOutcome, seconds: float
) -> None:
    newest = run.attempts()[-1]
    # A trainer that left last words explains itself; only without them is its log quoted.
    unexplained = outcome.mood == "failed" and not newest.last_words.exists()
    text = summary(
        view,
        outcome,
        seconds,
        responses=compared_responses(stores.metadata, stores.objects, run.run_id),
        files=_files(run, stores),
        log_tail=log_tail(newest.log) if unexplained else [],
        curves=Curves(view, glyphs_of(show.console)) if view.step and not (show.is_plain or show.quiet) else None,
    )
    try:
        show.console.print(text)
        show.console.file.flush()
    except UNREADABLE:
        discard_output()


def _files(run: RunFolder, stores: StoreUrls) -> dict[str, str]:
    """Files and folders that the run leaves, by name."""
    checkpoints = open_store(stores.objects).address(checkpoints_prefix(run.run_id).rstrip("/"))
    if checkpoints.startswith("file://"):
        checkpoints = shown_path(Path(unquote(urlsplit(checkpoints).path)))
    return {
        "run": shown_path(run.path),
        "log": shown_path(run.attempts()[-1].log),
        "checkpoints": checkpoints,
        "database": _database(stores.metadata),
    }


def _database(url: str) -> str:
    return shown_path(Path(url.removeprefix("sqlite:///"))) if url.startswith("sqlite:///") else shown_url(url)
