"""A trainer process and whoever supervises it: what it is started with, what it says meanwhile, and how it ended."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NoReturn

from dapo_core.local_files import write_atomically
from dapo_core.run.failure_policy import Failure
from dapo_core.run.last_words import LastWords
from dapo_core.run.reasons import ExitCode, Reason
from dapo_trainer.process.run_folder import AttemptFolder, RunFolder
from dapo_trainer.process.signals import signal_at_death_of

TRAINER: tuple[str, ...] = (sys.executable, "-m", "dapo_trainer.main")
TAIL_BYTES = 16_384
TAIL_LINES = 12

_MESSAGES: dict[int, str] = {
    ExitCode.DONE: "The trainer finished.",
    ExitCode.KILLED: "The trainer was killed (exit code 137), by a user or because the machine ran out of memory.",
    ExitCode.TERMINATED: "The trainer stopped on request.",
}


@dataclass(frozen=True)
class StoreUrls:
    """URLs of the two stores of a run."""

    metadata: str
    objects: str


@dataclass(frozen=True)
class TrainerEnvironment:
    """The environment variables of a trainer process, the same in a pod and below `dapo run` (docs/architecture.md)."""

    job_file: Path
    run_id: str
    attempt: int
    stores: StoreUrls
    work: Path
    # Address of the Ray cluster that the job's pods form; None on one machine, where the trainer starts its own.
    ray_address: str | None = None

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> "TrainerEnvironment":
        """As started. Raises KeyError for a variable that is missing."""
        return cls(
            job_file=Path(environment["DAPO_JOB"]),
            run_id=environment["DAPO_RUN_ID"],
            attempt=int(environment["DAPO_ATTEMPT"]),
            stores=StoreUrls(environment["DAPO_METADATA_URL"], environment["DAPO_STORE_URL"]),
            work=Path(environment["DAPO_WORK_DIR"]),
            ray_address=environment.get("RAY_ADDRESS"),
        )


def trainer_environment(
    run: RunFolder, attempt: AttemptFolder, stores: StoreUrls, base: Mapping[str, str]
) -> dict[str, str]:
    """What `TrainerEnvironment` reads, on top of `base`, for an attempt on this machine."""
    return {
        **base,
        "DAPO_JOB": str(run.job_file),
        "DAPO_RUN_ID": run.run_id,
        "DAPO_ATTEMPT": str(attempt.number),
        "DAPO_METADATA_URL": stores.metadata,
        "DAPO_STORE_URL": stores.objects,
        "DAPO_WORK_DIR": str(attempt.path),
        "DAPO_TERMINATION_LOG": str(attempt.last_words),
        # The log is followed while it is written, and a crash in native code leaves Python's stacks in it.
        "PYTHONUNBUFFERED": "1",
        "PYTHONFAULTHANDLER": "1",
    }


class TrainerProcess:
    """A started trainer, in a session of its own so that the terminal's Ctrl-C does not reach it.

    `inherits`: open descriptors that it holds as well.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        attempt: AttemptFolder,
        inherits: Sequence[int] = (),
    ) -> None:
        attempt.path.mkdir(parents=True, exist_ok=True)
        with attempt.log.open("ab") as log:
            self._process = subprocess.Popen(
                list(command),
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=inherits,
                # Killed outright, this process can stop nobody: the kernel then asks the trainer to stop.
                preexec_fn=partial(signal_at_death_of, os.getpid(), signal.SIGTERM),
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def exit_code(self) -> int | None:
        """None while it runs. A death by signal N is 128 + N, as a shell and Kubernetes count it."""
        code = self._process.poll()
        return code if code is None or code >= 0 else 128 - code

    def ask_to_stop(self) -> None:
        """Send SIGTERM: the trainer saves a checkpoint, then ends with 143."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)


@dataclass(frozen=True)
class Heartbeat:
    """What the trainer is doing, written at each change of phase.

    `since` is Unix seconds; `step` is the one being worked on.
    """

    phase: str
    step: int
    total_steps: int
    since: float
    detail: str = ""

    def write(self, path: Path) -> None:
        """Replace the heartbeat in `path`. Raises OSError."""
        beat = {"phase": self.phase, "step": self.step, "totalSteps": self.total_steps}
        write_atomically(path, json.dumps({**beat, "ts": self.since, "detail": self.detail}))

    @classmethod
    def read(cls, path: Path) -> "Heartbeat | None":
        """The newest heartbeat in `path`; None before the first, and for one that is not valid."""
        try:
            beat = json.loads(path.read_bytes())
            return cls(
                phase=str(beat["phase"]),
                step=int(beat["step"]),
                total_steps=int(beat["totalSteps"]),
                since=float(beat["ts"]),
                detail=str(beat.get("detail") or ""),
            )
        except (OSError, ValueError, KeyError, TypeError):
            return None


def exit_now(code: int, words: LastWords) -> NoReturn:
    """End this process with its last words; threads of Ray and vLLM outlive a failed run, and would keep it forever."""
    words.leave()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def why(exit_code: int, words: LastWords | None) -> tuple[str, str]:
    """Reason and sentence of a trainer's end: its own last words where it left any. Pure."""
    if words is not None and (exit_code != ExitCode.KILLED or words.reason == Reason.STALLED):
        return words.reason, words.message
    message = _MESSAGES.get(exit_code, f"The trainer ended with exit code {exit_code}.")
    return Failure(exit_code).why, message


def log_tail(log: Path) -> list[str]:
    """The last lines of a log, for an end that the trainer could not explain itself; none if it cannot be read."""
    try:
        with log.open("rb") as opened:
            opened.seek(max(0, log.stat().st_size - TAIL_BYTES))
            text = opened.read().decode(errors="replace")
    except OSError:
        return []
    return [line for line in text.splitlines() if line.strip()][-TAIL_LINES:]
