"""States, numbers and times as the pages write them. Pure."""

from collections.abc import Mapping
from typing import Final

from dapo_core.db import CurvePoint, RunState
from dapo_core.run import metrics
from dapo_core.run.formatting import span

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
REWARD: Final = (metrics.REWARD_GENERATED, metrics.REWARD_TRAINED)
ACCURACY: Final = (metrics.ACCURACY_GENERATED, metrics.ACCURACY_TRAINED)


def state(name: str) -> str:
    """`▶ Running`."""
    return f"{STATE_ICONS.get(name, '·')} {name}"  # type: ignore[call-overload]


def first(values: Mapping[str, CurvePoint], *names: str) -> float | None:
    """The last finite value of the first of `names` that the run has."""
    return next((values[name].value for name in names if name in values), None)


def seconds_left(step: int | None, total: int | None, seconds_per_step: float | None) -> float | None:
    """Time left at the speed of the last step."""
    if step is None or total is None or seconds_per_step is None or step > total:
        return None
    return (total - step) * seconds_per_step


def left(seconds: float | None) -> str:
    """`2h05m`; empty for what is not known."""
    return "" if seconds is None else span(seconds)
