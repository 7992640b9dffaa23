"""How an attempt ended, in the words of the status, and what a user is told of it. Pure, but for reading its log."""

from pathlib import Path

from dapo_core.run.failure_policy import Failure
from dapo_core.run.last_words import LastWords
from dapo_core.run.reasons import ExitCode

TAIL_BYTES = 16_384
TAIL_LINES = 12

_MESSAGES: dict[int, str] = {
    ExitCode.DONE: "The trainer finished.",
    ExitCode.KILLED: "The trainer was killed (exit code 137); when nobody did, the machine ran out of memory.",
    ExitCode.TERMINATED: "The trainer stopped as it was asked.",
}


def why(exit_code: int, words: LastWords | None) -> tuple[str, str]:
    """Reason and sentence of an attempt's end: the trainer's own last words where it left any."""
    if words is not None and exit_code != ExitCode.KILLED:
        return words.reason, words.message
    known = _MESSAGES.get(exit_code, f"The trainer ended with exit code {exit_code}.")
    return Failure(exit_code).why, known


def log_tail(log: Path) -> list[str]:
    """The last lines of a log, for an end that the trainer could not explain itself."""
    try:
        with log.open("rb") as opened:
            opened.seek(max(0, log.stat().st_size - TAIL_BYTES))
            text = opened.read().decode(errors="replace")
    except OSError:
        return []
    return [line for line in text.splitlines() if line.strip()][-TAIL_LINES:]
