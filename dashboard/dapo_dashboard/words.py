"""States, numbers and times as the pages write them. Pure."""

from collections.abc import Mapping
from typing import Final

from dapo_core.db import CurvePoint, RunState
from dapo_core.run.formatting import duration
from dapo_core.run.metrics import Headline

# A shape and a word besides the colour.
STATE_ICONS: Final[Mapping[RunState, str]] = {
    "Created": "○",
    "Running": "▶",
    "Restarting": "↻",
    "Suspended": "‖",
    "Stopped": "■",
    "Succeeded": "✓",
    "Failed": "✗",
}
STATE_COLOURS: Final[Mapping[str, str]] = {
    "Running": "blue",
    "Succeeded": "green",
    "Failed": "red",
    "Restarting": "orange",
    "Suspended": "violet",
}


def state(name: str) -> str:
    """`▶ Running`."""
    return f"{STATE_ICONS.get(name, '·')} {name}"  # type: ignore[call-overload]


def last(values: Mapping[str, CurvePoint], headline: Headline) -> float | None:
    """The run's last value of it; None where it has none or that one is not finite."""
    point = headline.of(values)
    return None if point is None else point.value


def left(seconds: float | None) -> str:
    """`2h05m`; empty for what is not known."""
    return "" if seconds is None else duration(seconds)
