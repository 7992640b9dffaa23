"""A run as plain lines, for logs and pipes. Pure."""

from datetime import datetime

from dapo_core.run import metrics
from dapo_core.run.formatting import duration, number, percent
from dapo_core.run.metrics import Headline
from dapo_trainer.local.view_model import Note, View


def step_line(view: View) -> str:
    """`step 12/120  reward 0.36  accuracy 68 %  ...`: the last step's values, whatever of them there is."""
    step = view.step or 0

    def at_step(metric: str) -> float | None:
        return view.curves.get(metric, {}).get(step)

    total = f"/{view.total_steps}" if view.total_steps else ""
    seconds = at_step(metrics.STEP_SECONDS)
    left = view.seconds_left()
    parts = [
        ("reward", number(at_step(Headline.REWARD.metric(view.curves)))),
        ("accuracy", percent(at_step(Headline.ACCURACY.metric(view.curves)))),
        ("length", number(at_step(metrics.LENGTH_MEAN))),
        ("entropy", number(at_step(metrics.ENTROPY))),
        *(
            (f"{validation.set_name} {validation.title}", percent(at_step(metric)))
            for metric, validation in metrics.validation_means(view.curves).items()
        ),
        ("step time", duration(seconds) if seconds is not None else "-"),
        ("left", duration(left) if left is not None else "-"),
    ]
    shown = "  ".join(f"{name} {value}" for name, value in parts if value != "-")
    return f"{_time(view.step_at or 0.0)} step {step}{total}  {shown}"


def note_line(note: Note) -> str:
    """An event with its time."""
    return f"{_time(note.at)} {'warning: ' if note.warning else ''}{note.reason}: {note.message}"


def phase_line(view: View) -> str:
    """What the trainer does, for the time before the first step."""
    return f"{_time(view.phase_since)} attempt {view.attempt} {view.phase}{': ' if view.detail else ''}{view.detail}"


def _time(at: float) -> str:
    return f"{datetime.fromtimestamp(at):%H:%M:%S}"
