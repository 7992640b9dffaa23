"""A trainer process's last words: why it ended, as JSON where Kubernetes reads it (the termination log)."""

import json
import os
import re
import sys
from dataclasses import asdict, dataclass
from ipaddress import ip_address
from pathlib import Path

from dapo_core.errors import DapoError
from dapo_core.run.formatting import printable
from dapo_core.run.reasons import ExitCode, Reason, cause_of, current, end_of
from dapo_core.run.redaction import text_without_secrets

DEFAULT_PATH = Path("/dev/termination-log")
# Kubernetes cuts a termination message at 4,096 bytes, and cut JSON is not JSON.
MAX_BYTES = 4000
_REASON = re.compile(r"[A-Za-z][A-Za-z0-9]{0,63}")
_STEPS = range(2**53)


def default_path() -> Path:
    """Where this process writes its last words: DAPO_TERMINATION_LOG, else Kubernetes' own place."""
    return Path(os.environ.get("DAPO_TERMINATION_LOG") or DEFAULT_PATH)


@dataclass(frozen=True)
class LastWords:
    """Why a process ended: a CamelCase reason, a sentence, and the last finished step (None before the first).
    `address` is the IP address of the pod in which another process raised the error, where it is known."""

    reason: str
    message: str
    step: int | None = None
    address: str | None = None

    @classmethod
    def parse(cls, text: str | bytes) -> "LastWords | None":
        """Last words as they were written, the reason as it is spelled today; None for anything else.

        A reason that is not a CamelCase word of at most 64 characters is read as Crashed; in the message, characters
        that no database and no terminal takes are replaced, and what looks like a secret.
        """
        try:
            said = json.loads(text)
            reason, step = current(str(said["reason"])), said.get("step")
            step = None if step is None or int(step) not in _STEPS else int(step)
            known = reason if _REASON.fullmatch(reason) else Reason.CRASHED
            message = text_without_secrets(printable(str(said.get("message", ""))))
            return cls(known, message, step, _address(said.get("address")))
        # A tenant's pod can write anything: also 1e999 as a step, or 4,000 brackets.
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            return None

    def write(self, path: Path | None = None) -> None:
        """Write to `path` (default: `default_path()`), shortened to what Kubernetes keeps. Raises OSError."""
        (path or default_path()).write_bytes(self._encode())

    def leave(self) -> None:
        """Write to `default_path()`. A failure is printed to standard error: an ending process has nobody to raise
        to."""
        try:
            self.write()
        except OSError as error:
            print(f"Cannot write the last words: {error}", file=sys.stderr)

    def _encode(self) -> bytes:
        message = self.message
        while len(encoded := _json({**asdict(self), "message": message})) > MAX_BYTES and message:
            # Each excess byte is at most one character, and at least a sixth of one (a \uXXXX escape).
            message = message[: -max(1, (len(encoded) - MAX_BYTES) // 6)]
        return encoded


def _json(value: dict[str, object]) -> bytes:
    return json.dumps(value).encode()


def read(path: Path | None = None) -> LastWords | None:
    """The last words at `path` (default: `default_path()`), or None when there are none that can be read."""
    try:
        return LastWords.parse((path or default_path()).read_bytes())
    except OSError:
        return None


def ending(error: BaseException) -> tuple[ExitCode, LastWords]:
    """The exit code and last words of a process that `error` ends."""
    code, reason = end_of(error)
    # Ray's errors of tasks have the address of the node that they come from.
    message = text_without_secrets(_message(error, reason))
    return code, LastWords(reason, message, address=_address(getattr(error, "ip", None)))


def _address(value: object) -> str | None:
    try:
        return str(ip_address(value)) if isinstance(value, str) else None
    except ValueError:
        return None


def _message(error: BaseException, reason: Reason) -> str:
    cause = cause_of(error)
    if isinstance(cause, DapoError):
        return str(cause).strip() or type(cause).__name__
    if reason == Reason.TERMINATED:
        return "Stopped on request."
    # Ray's message is the traceback of the other process, and ends with the error's name and its last line.
    raised = cause if reason == Reason.INVALID_SPEC else error
    name, lines = type(raised).__name__, [line.strip() for line in str(raised).splitlines() if line.strip()]
    if not lines:
        return name
    return f"{name}: {lines[-1]}" if reason == Reason.CRASHED else lines[-1]
