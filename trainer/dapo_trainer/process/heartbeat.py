"""heartbeat.json: what the trainer does right now."""

import json
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Heartbeat:
    """Written by the trainer at each change of phase. `since` is Unix seconds; `step` is the one being worked on."""

    phase: str
    step: int
    total_steps: int
    since: float
    detail: str = ""


def read_heartbeat(path: Path) -> Heartbeat | None:
    """The newest heartbeat, or None before the first. One that can't be understood counts as none."""
    try:
        beat = json.loads(path.read_bytes())
        return Heartbeat(
            phase=str(beat["phase"]),
            step=int(beat["step"]),
            total_steps=int(beat["totalSteps"]),
            since=float(beat["ts"]),
            detail=str(beat.get("detail") or ""),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
