"""What a trainer process says last: why it ended, as JSON where Kubernetes reads it (the termination log)."""

import json
import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

DEFAULT_PATH = Path("/dev/termination-log")
# Kubernetes cuts a termination message at 4,096 bytes, and cut JSON is not JSON.
MAX_BYTES = 4000


def default_path() -> Path:
    """Where this process writes its last words: DAPO_TERMINATION_LOG, else Kubernetes' own place."""
    return Path(os.environ.get("DAPO_TERMINATION_LOG") or DEFAULT_PATH)


@dataclass(frozen=True)
class LastWords:
    """Why a process ended: a CamelCase reason, a sentence, and the last finished step (None before the first)."""

    reason: str
    message: str
    step: int | None = None

    def write(self, path: Path | None = None) -> None:
        """Write to `path` (default: `default_path()`), shortened to what Kubernetes keeps. Raises OSError."""
        (path or default_path()).write_bytes(self._encode())

    def leave(self) -> None:
        """Write to this process's own place. One that can not be written is told on standard error: who ends has nobody
        to raise to."""
        try:
            self.write()
        except OSError as error:
            print(f"The last words cannot be written: {error}", file=sys.stderr)

    def _encode(self) -> bytes:
        message = self.message
        while len(encoded := _json({**asdict(self), "message": message})) > MAX_BYTES and message:
            # A byte too many is at most one character too many, and at least a sixth of one (a \uXXXX escape).
            message = message[: -max(1, (len(encoded) - MAX_BYTES) // 6)]
        return encoded


def _json(value: dict[str, object]) -> bytes:
    return json.dumps(value).encode()


def read(path: Path | None = None) -> LastWords | None:
    """The last words at `path`, or None when nothing readable was left there."""
    try:
        words = json.loads((path or default_path()).read_bytes())
        step = words.get("step")
        return LastWords(str(words["reason"]), str(words.get("message", "")), None if step is None else int(step))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
