"""A restart in place: the pod outlives its attempt, and its processes start again for the next one.

The pod's first process, which recorded the ended program, ends all other processes of the pod, removes what they left
in shared memory, and executes the pod's program again, with the environment of the next attempt: image, model and disk
stay. The pod is not ready from then on, by which the operator knows that nothing of the old attempt runs there. It
waits at the gate of the next attempt's head, whose name is known; the operator creates that head, or deletes the pod.
"""

import logging
import os
import shutil
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

import psutil

from dapo_core.naming import child_name
from dapo_core.run.last_words import default_path
from dapo_core.run.reasons import ExitCode
from dapo_trainer.pod.node import STAYED, ready_file
from dapo_trainer.process.processes import has_ended, send
from dapo_trainer.process.signals import STOPPING

log = logging.getLogger(__name__)

# Set by the operator in pods that may serve another attempt.
RESTART: Final = "DAPO_RESTART"
IN_PLACE: Final = "InPlace"
# How long a pod waits for the next attempt's head. The operator, which keeps none for longer, may be away.
NEXT_HEAD_SECONDS: Final = 600.0
END_SECONDS: Final = 30.0
POLL_SECONDS: Final = 0.05
# Of a pod alone, and cleared only there: on one machine others use them.
_SHARED: Final = (Path("/dev/shm"), Path("/tmp/ray"))


def may_stay(environment: Mapping[str, str], code: int) -> bool:
    """Whether a pod whose program ended with `code` serves the next attempt: it only lost its driver, or its Ray, and
    had joined, which its readiness tells."""
    is_asked = environment.get(RESTART) == IN_PLACE
    return is_asked and code == ExitCode.DISTRIBUTED and ready_file(environment).exists()


def next_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of the same pod for the attempt after this one. Pure.

    Raises KeyError, ValueError when a pod's variables are missing or not as the operator sets them.
    """
    attempt = int(environment["DAPO_ATTEMPT"])
    head, dot, rest = environment["DAPO_HEAD_ADDRESS"].partition(".")
    ending, work = child_name("", "head", attempt, 0), Path(environment["DAPO_WORK_DIR"])
    if not head.endswith(ending):
        raise ValueError(f"DAPO_HEAD_ADDRESS begins with {head}, which is not a head of attempt {attempt}")
    following = child_name(head.removesuffix(ending), "head", attempt + 1, 0)
    return {
        **environment,
        "DAPO_ATTEMPT": str(attempt + 1),
        "DAPO_HEAD_ADDRESS": f"{following}{dot}{rest}",
        "DAPO_WORK_DIR": str(work.with_name(f"attempt-{attempt + 1}")),
        STAYED: "1",
    }


def end_others(limit_seconds: float = END_SECONDS) -> bool:
    """End every process below this one, to the last. Returns False for those that the kernel would not end in time."""
    until = time.monotonic() + limit_seconds
    while left := _below():
        if time.monotonic() >= until:
            return False
        for process in left:
            send(process, signal.SIGKILL)
        time.sleep(POLL_SECONDS)
    return True


def _below() -> list[psutil.Process]:
    """The processes below this one that run; those that have ended are reaped."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    return [process for process in psutil.Process().children(recursive=True) if not has_ended(process)]


def clear(environment: Mapping[str, str], *, alone: bool) -> None:
    """Remove what an ended attempt left: shared memory where the pod is `alone` in it, its last words, folders of older
    attempts, and last its readiness."""
    work = Path(environment["DAPO_WORK_DIR"])
    for folder in _SHARED if alone else ():
        for path in _in(folder):
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
    # The newest checkpoint may be where the next attempt continues, and that of the attempt before.
    number = int(environment["DAPO_ATTEMPT"])
    for path in work.parent.glob("attempt-*"):
        if path.name not in (work.name, f"attempt-{number - 1}"):
            shutil.rmtree(path, ignore_errors=True)
    with suppress(OSError):  # the kubelet takes what is there when the container ends
        default_path().write_bytes(b"")
    ready_file(environment).unlink(missing_ok=True)


def _in(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def serve_next(environment: Mapping[str, str], *, alone: bool) -> None:
    """Become the pod's program again, in the same process, for the next attempt. Returns when that cannot be."""
    # What arrives at this moment waits until it has a handler.
    signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    try:
        following = next_environment(environment)
    except (KeyError, ValueError) as error:
        log.warning("This pod cannot serve another attempt: %s", error)
        return
    if not end_others():
        log.warning("This pod cannot serve another attempt: its processes could not be ended.")
        return
    clear(environment, alone=alone)
    log.info("The driver is lost; this pod stays for attempt %s.", following["DAPO_ATTEMPT"])
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], following)
