"""What a run did before, from the metadata store, so that its view does not start empty."""

from dataclasses import replace

from dapo_core.db import MetadataReader
from dapo_core.errors import StoreError
from dapo_trainer.local.view_model import Note, View, with_event, with_step


def with_history(view: View, reader: MetadataReader, until_step: int | None = None) -> View:
    """The view with the run's steps and events; unchanged when the store can't be read, as it is only looked at."""
    try:
        return _replayed(view, reader, until_step)
    except StoreError:
        return view


def _replayed(view: View, reader: MetadataReader, until_step: int | None) -> View:
    steps: dict[int, dict[str, float]] = {}
    last: dict[int, tuple[int, float]] = {}
    for metric in reader.metrics(view.run_id):
        for point in reader.curve(view.run_id, metric):
            steps.setdefault(point.step, {})[metric] = point.number
            last[point.step] = max((point.attempt, point.ts), last.get(point.step, (0, 0.0)))
    shown = [step for step in sorted(steps) if until_step is None or step <= until_step]
    # One attempt for all: the reader has chosen already whose value of a step counts.
    newest = max((last[step][0] for step in shown), default=0)
    for step in shown:
        view = with_step(view, newest, step, last[step][1], steps[step])
    for event in reversed(reader.events(view.run_id, limit=20)):
        view = with_event(view, Note(event.ts, event.reason, event.message, warning=event.type == "Warning"))
    return replace(view, attempt=newest)
