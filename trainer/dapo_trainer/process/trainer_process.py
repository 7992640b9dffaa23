"""The trainer's first process: started with the environment every trainer gets, and asked to stop."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from dapo_trainer.process.kernel import signal_at_death_of
from dapo_trainer.process.run_folder import AttemptFolder, RunFolder

TRAINER: tuple[str, ...] = (sys.executable, "-m", "dapo_trainer.main")


@dataclass(frozen=True)
class Places:
    """URLs of the two stores of a run."""

    metadata_url: str
    store_url: str


def trainer_environment(
    run: RunFolder, attempt: AttemptFolder, places: Places, base: Mapping[str, str]
) -> dict[str, str]:
    """What a trainer process reads, on top of `base`; the same names as in a pod."""
    return {
        **base,
        "DAPO_JOB": str(run.job_file),
        "DAPO_RUN_ID": run.run_id,
        "DAPO_ATTEMPT": str(attempt.number),
        "DAPO_METADATA_URL": places.metadata_url,
        "DAPO_STORE_URL": places.store_url,
        "DAPO_WORK_DIR": str(attempt.path),
        "DAPO_TERMINATION_LOG": str(attempt.last_words),
        # The log is followed while it is written, and a crash in native code leaves Python's stacks in it.
        "PYTHONUNBUFFERED": "1",
        "PYTHONFAULTHANDLER": "1",
    }


class TrainerProcess:
    """A started trainer, in a session of its own so that the terminal's Ctrl-C does not reach it."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], attempt: AttemptFolder) -> None:
        attempt.path.mkdir(parents=True, exist_ok=True)
        with attempt.log.open("ab") as log:
            self._process = subprocess.Popen(
                list(command),
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
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
        """SIGTERM: checkpoint, then end with 143."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
