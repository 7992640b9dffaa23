"""`dapo logs JOB`: what a pod printed, from the cluster while it exists, else from the object store; and local runs."""

import os
import sys
import time
from collections.abc import Callable
from typing import Annotated, Final, Protocol, cast

import typer

from dapo_core.cli.common_options import HomeOption, MetadataOption, NamespaceOption, StoreOption
from dapo_core.cli.log_reading import (
    ClusterAnswer,
    LogFile,
    LogPrinter,
    LogRequest,
    LogSource,
    StoredLog,
    stored_logs,
)
from dapo_core.cli.main import entry_points
from dapo_core.cli.runs import UnknownRunError, find_run
from dapo_core.cli.terminal import say
from dapo_core.db import MetadataReader, RunRow, open_reader
from dapo_core.errors import DapoError, Problem, SpecError
from dapo_core.naming import ROLES
from dapo_core.objectstore import open_store
from dapo_core.run.home import TRAINER_LOG, Home, NoRunsError, attempt_folders
from dapo_core.run.log_keys import PodLog

CLUSTERS: Final = "dapo.pod_logs"
LOOK_SECONDS: Final = 2.0
_SHOWN: Final = 12


class NoLogError(DapoError):
    """There is no such log."""

    user_mistake = True


class AskCluster(Protocol):
    """Prints the log of a pod that still exists."""

    def __call__(self, request: LogRequest, printer: LogPrinter) -> ClusterAnswer: ...


def logs(
    job: Annotated[str, typer.Argument(help="Job name (its latest run) or run ID.", metavar="JOB")],
    attempt: Annotated[
        int | None, typer.Option(help="Number of the attempt. Default: the newest.", min=1, show_default=False)
    ] = None,
    role: Annotated[str, typer.Option(help="head (the driver and Ray's workers), trainer or rollout.")] = ROLES[0],
    index: Annotated[int, typer.Option(help="Index of the pod within its role.", min=0)] = 0,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Print new lines until the attempt ends.")] = False,
    tail: Annotated[
        int | None, typer.Option(help="Begin with this number of lines from the end.", min=0, show_default=False)
    ] = None,
    namespace: NamespaceOption = None,
    home: HomeOption = None,
    metadata: MetadataOption = None,
    store: StoreOption = None,
) -> None:
    """Print the log of a job's pod or of a local run, live or ended."""
    if role not in ROLES:
        raise SpecError([Problem("--role", f"--role is {role}: it must be one of {', '.join(ROLES)}.")])
    request = LogRequest(job, namespace, attempt, role, index, follow, tail)
    place, printer = Home.find(home, metadata, store), LogPrinter(_write)
    try:
        _print(request, place, printer)
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    except BrokenPipeError:  # `| head` has enough; Python would fail again when it flushes at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _print(request: LogRequest, place: Home, printer: LogPrinter) -> None:
    reader, row, unknown = _recorded(request, place)
    if row is not None and request.namespace is None and (folders := attempt_folders(place.path / row.run_id)):
        number = request.attempt or max(folders)
        path = folders.get(number, place.path) / TRAINER_LOG
        if request.role != ROLES[0] or request.index or not path.is_file():
            raise NoLogError(
                f"The local run {row.run_id} has one log for each attempt, without --role and --index: "
                f"{_numbers(sorted(folders))}."
            )
        _show(LogFile(path), request, printer, _ended(reader, row.run_id, number))
        return
    answer = _ask_cluster(request, printer)
    if answer.printed:
        if answer.why:
            say(answer.why, err=True)
        return
    run_id = row.run_id if row is not None else answer.run_id
    if run_id is None:
        raise NoLogError(" ".join(part for part in (unknown, answer.why) if part))
    objects = open_store(place.store or (row.objects_url if row is not None else None) or place.store_url)
    found = stored_logs(objects, run_id)
    number = request.attempt or max((log.attempt for log in found), default=0)
    wanted = PodLog(number, request.role, request.index)
    if wanted not in found:
        raise NoLogError(_missing(wanted, found, objects.address(run_id), answer.why))
    _show(StoredLog(objects, run_id, wanted), request, printer, _ended(reader, run_id, number))


def _recorded(request: LogRequest, place: Home) -> tuple[MetadataReader | None, RunRow | None, str]:
    """The metadata store and the run on record there, and why there is none."""
    try:
        reader = open_reader(place.recorded_url)
    except NoRunsError as error:
        return None, None, str(error)
    try:
        row = find_run(reader, request.job)
    except UnknownRunError as error:
        return reader, None, str(error)
    other = request.namespace is not None and row.namespace != request.namespace
    return reader, None if other else row, f"The run {row.run_id} belongs to another namespace." if other else ""


def _ask_cluster(request: LogRequest, printer: LogPrinter) -> ClusterAnswer:
    for point in entry_points(CLUSTERS).values():
        try:
            ask = cast(AskCluster, point.load())
        except ModuleNotFoundError:
            return ClusterAnswer(False, why="Pods are not asked: install dapo-platform with the extra operator.")
        return ask(request, printer)
    return ClusterAnswer(False)


def _show(source: LogSource, request: LogRequest, printer: LogPrinter, ended: Callable[[], bool]) -> None:
    over = not request.follow or ended()
    printer.print(source.read(), request.tail)
    while not over:
        time.sleep(LOOK_SECONDS)
        over = ended()  # before the last look, so that what was printed until then is seen
        printer.print(source.read())
    printer.end()


def _ended(reader: MetadataReader | None, run_id: str, number: int) -> Callable[[], bool]:
    """Whether the attempt is over, as far as is known."""

    def ended() -> bool:
        attempts = [] if reader is None else reader.attempts(run_id)
        return any(row.attempt > number or (row.attempt == number and row.ended_at is not None) for row in attempts)

    return ended


def _missing(wanted: PodLog, found: list[PodLog], address: str, why: str) -> str:
    there = [f"attempt {log.attempt} {log.pod}" for log in found[-_SHOWN:]]
    has = f"it has {', '.join(there)}" if there else "it has no log of this run"
    what = f"attempt {wanted.attempt} {wanted.pod}" if wanted.attempt else wanted.pod
    return " ".join(part for part in (f"There is no log of {what} in {address}; {has}.", why) if part)


def _numbers(attempts: list[int]) -> str:
    return "attempts " + ", ".join(map(str, attempts))


def _write(line: str) -> None:
    sys.stdout.write(line)
    sys.stdout.flush()
