"""Times, numbers and states as people read them. Pure."""

import math
from datetime import datetime


def ago(then: float | None, now: float) -> str:
    """`3m ago`; `-` for a moment that never was."""
    return "-" if then is None else f"{span(now - then)} ago"


def span(seconds: float) -> str:
    """`42s`, `3m`, `2h05m`, `4d03h`."""
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s" if whole < 600 else f"{whole // 60}m"
    if whole < 86_400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86_400}d{whole % 86_400 // 3600:02d}h"


def moment(ts: float | None) -> str:
    """Local date and time to the second."""
    return "-" if ts is None else datetime.fromtimestamp(ts).strftime("%Y-%m-%d %H:%M:%S")


def number(value: float | None) -> str:
    """Four significant digits; `nan` and `inf` as such."""
    if value is None:
        return "-"
    return f"{value:.4g}" if math.isfinite(value) else str(value)


def size(count: int | None) -> str:
    """Bytes in the largest fitting decimal unit."""
    if count is None:
        return "-"
    amount, units = float(count), ["B", "kB", "MB", "GB", "TB"]
    while amount >= 1000 and len(units) > 1:
        amount, units = amount / 1000, units[1:]
    return f"{amount:.0f} {units[0]}" if units[0] == "B" else f"{amount:.1f} {units[0]}"


def state_style(state: str) -> str:
    """Colour of a run's or checkpoint's state."""
    return {
        "Running": "cyan",
        "Succeeded": "green",
        "committed": "green",
        "Failed": "red",
        "failed": "red",
        "Suspended": "yellow",
        "Stopped": "yellow",
        "Restarting": "yellow",
    }.get(state, "dim")
