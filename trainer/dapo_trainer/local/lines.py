"""A run as plain lines, for logs and pipes. Pure."""

from datetime import datetime

from dapo_trainer.local import watched
from dapo_trainer.local.view_model import Note, View
from dapo_trainer.local.words import clock, number, percent


def step_line(view: View) -> str:
    """`step 12/120  reward 0.36  accuracy 68 %  ...`: the last step's values, whatever of them there is."""
    step = view.step or 0

    def at_step(metric: str) -> float | None:
        return view.curves.get(metric, {}).get(step)

    total = f"/{view.total_steps}" if view.total_steps else ""
    seconds = at_step(watched.STEP_SECONDS)
    left = view.seconds_left()
    parts = [
        ("reward", number(at_step(watched.first_of(view, watched.REWARD)))),
        ("accuracy", percent(at_step(watched.first_of(view, watched.ACCURACY)))),
        ("length", number(at_step(watched.LENGTH[0]))),
        ("entropy", number(at_step(watched.ENTROPY[0]))),
        *((f"{check.name} {check.title}", percent(at_step(check.metric))) for check in watched.validations(view)),
        ("seconds", number(seconds, 2)),
        ("left", clock(left) if left is not None else "-"),
    ]
    at = view.finished[-1][1] if view.finished else 0.0
    shown = "  ".join(f"{name} {value}" for name, value in parts if value != "-")
    return f"{_time(at)} step {step}{total}  {shown}"


def note_line(note: Note) -> str:
    """An event with its time."""
    return f"{_time(note.at)} {'warning: ' if note.warning else ''}{note.reason}: {note.message}"


def phase_line(view: View) -> str:
    """What the trainer does, for the time before the first step."""
    return f"{_time(view.phase_since)} attempt {view.attempt} {view.phase}{': ' if view.detail else ''}{view.detail}"


def _time(at: float) -> str:
    return f"{datetime.fromtimestamp(at):%H:%M:%S}"
