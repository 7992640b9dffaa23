"""Log records as lines of JSON, with the job and the attempt that they are about."""

import contextlib
import json
import logging
import sys
from collections.abc import Iterator
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import TextIO

_about: ContextVar[dict[str, str | int]] = ContextVar("about")


@contextlib.contextmanager
def bound(**about: str | int | None) -> Iterator[None]:
    """Records logged inside carry these fields, except those that are None."""
    token = _about.set(_about.get({}) | {key: value for key, value in about.items() if value is not None})
    try:
        yield
    finally:
        _about.reset(token)


class JsonLines(logging.Formatter):
    """`{"time", "level", "logger", "message", "job", "attempt", "error"}`; times are UTC."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        fields = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_about.get({}),
        }
        if record.exc_info:
            fields["error"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=False)


class PlainLines(logging.Formatter):
    """For a terminal: `08:00:00 WARNING [default/first 2] text`."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s%(about)s %(message)s", "%H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        """One line, more for an exception."""
        about = _about.get({})
        record.about = f" [{' '.join(str(value) for value in about.values())}]" if about else ""
        return super().format(record)


def set_up(level: str = "INFO", as_json: bool = True, stream: TextIO | None = None) -> None:
    """Log to `stream` (stderr) from now on."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines() if as_json else PlainLines())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
