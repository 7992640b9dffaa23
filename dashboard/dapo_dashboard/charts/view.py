"""How the charts of a page are looked at; the page's URL holds all of it. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from dapo_dashboard.clock import AXES, Axis

FROM, TO = "from", "to"


@dataclass(frozen=True)
class View:
    """`smoothing` in [0, 1); `window` is the range of steps shown, None for all."""

    axis: Axis = "step"
    smoothing: float = 0.0
    log: bool = False
    window: tuple[int, int] | None = None


def window_of(query: Mapping[str, str]) -> tuple[int, int] | None:
    """The range of steps that a URL asks for; nonsense asks for none."""
    try:
        start, end = int(query[FROM]), int(query[TO])
    except (KeyError, ValueError):
        return None
    return (start, end) if 0 <= start < end else None


def axis_of(label: str | None) -> Axis:
    """The axis of that name, else steps."""
    return next((axis for axis in AXES if axis == label), "step")
