"""Where the files of local runs are, and the lock that keeps each run to one process.

{home}/dapo.db              metadata of all runs (SQLite)
{home}/store/{run_id}/      checkpoints and samples, unless the job or DAPO_STORE_URL names another place
{home}/{run_id}/job.json    the job as it runs
{home}/{run_id}/database    its metadata store, without the password
{home}/{run_id}/lock        held by the process that works on the run
{home}/{run_id}/processes.json
{home}/{run_id}/attempt-N/  spool/, heartbeat.json, trainer.log, termination-log, ray/
"""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dapo_core.errors import Problem, RunBusyError, SpecError
from dapo_core.jobspec import DAPOJob, parse_job
from dapo_core.local_files import lock_file, write_atomically
from dapo_core.run.home import TRAINER_LOG, Home, attempt_folders


@dataclass(frozen=True)
class AttemptFolder:
    """What one attempt of the trainer reads and writes besides the stores."""

    number: int
    path: Path

    @property
    def spool(self) -> Path:
        return self.path / "spool"

    @property
    def heartbeat(self) -> Path:
        return self.path / "heartbeat.json"

    @property
    def log(self) -> Path:
        return self.path / TRAINER_LOG

    @property
    def ray_logs(self) -> Path:
        """Of Ray's daemons, of an attempt that failed."""
        return self.path / "ray"

    @property
    def last_words(self) -> Path:
        return self.path / "termination-log"


@dataclass(frozen=True)
class RunFolder:
    """The folder of one run."""

    path: Path

    @property
    def run_id(self) -> str:
        return self.path.name

    @property
    def job_file(self) -> Path:
        return self.path / "job.json"

    @property
    def database(self) -> Path:
        return self.path / "database"

    @property
    def lock(self) -> Path:
        return self.path / "lock"

    @property
    def processes(self) -> Path:
        return self.path / "processes.json"

    def attempt(self, number: int) -> AttemptFolder:
        return AttemptFolder(number, self.path / f"attempt-{number}")

    def attempts(self) -> list[AttemptFolder]:
        """The run's attempts so far, oldest first."""
        return [self.attempt(number) for number in attempt_folders(self.path)]

    def write_job(self, job: DAPOJob) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        text = json.dumps(job.model_dump(by_alias=True, mode="json", exclude_none=True), indent=2)
        write_atomically(self.job_file, text + "\n")

    def read_job(self) -> DAPOJob:
        """The job as it was started. Raises SpecError when the file is missing or damaged."""
        try:
            return parse_job(json.loads(self.job_file.read_text()))
        except (OSError, ValueError) as error:
            sentence = f"{self.job_file} cannot be read ({error}), so this run cannot be resumed."
            raise SpecError([Problem(str(self.job_file), sentence)]) from error


def run_folders(home: Home) -> list[RunFolder]:
    """The runs of a home, oldest first."""
    jobs = list(home.path.glob("*/job.json")) if home.path.is_dir() else []
    return [RunFolder(job.parent) for job in sorted(jobs, key=lambda job: job.stat().st_mtime)]


def find_run(home: Home, name: str) -> RunFolder:
    """The run of this id, else the newest run of the job of this name. Raises SpecError."""
    runs = run_folders(home)
    for run in runs:
        if run.run_id == name:
            return run
    named = [run for run in runs if _job_name(run.run_id) == name]
    if named:
        return named[-1]
    known = ", ".join(run.run_id for run in runs[-5:]) or "none yet"
    raise SpecError([Problem("RUN", f"There is no run {name} in {home.path}; the newest runs: {known}.")])


@contextmanager
def hold(lock: Path, run_id: str) -> Iterator[None]:
    """Hold a run's lock within the block. Raises RunBusyError, naming the holder, when another process has it.

    It is the kernel's lock, which ends with its holder however that dies.
    """
    lock.parent.mkdir(parents=True, exist_ok=True)
    try:
        descriptor = lock_file(lock)
    except BlockingIOError:
        holder = lock.read_text(errors="replace").strip() or "of unknown id"
        raise RunBusyError(
            f"Process {holder} is working on the run {run_id}: wait for it to end, or stop it with "
            f"`kill {holder}`, and try again."
        ) from None
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


def shown_path(path: Path) -> str:
    """Relative to the working folder if it is inside: shorter, and still valid when copied."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def _job_name(run_id: str) -> str:
    return run_id.rsplit("-", 3)[0]
