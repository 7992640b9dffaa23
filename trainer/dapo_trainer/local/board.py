"""The state of the view and the display it is shown on, kept together while a run goes on."""

import time
from collections.abc import Callable
from dataclasses import replace

from dapo_trainer.local.display import Display
from dapo_trainer.local.ports import Step
from dapo_trainer.local.view_model import (
    Mood,
    Note,
    View,
    with_attempt,
    with_event,
    with_heartbeat,
    with_mood,
    with_step,
)
from dapo_trainer.process.heartbeat import Heartbeat


class Board:
    """Every piece of news goes through here, once."""

    def __init__(self, view: View, display: Display, now: Callable[[], float] = time.time) -> None:
        self.view = view
        self._display = display
        self._now = now

    def attempt(self, number: int, restarts: int, log: str) -> None:
        self.view = replace(with_attempt(self.view, number, restarts, self._now()), log=log)

    def look(self, beat: Heartbeat | None) -> None:
        """Show the present moment; called at every turn of the loop."""
        self.view = with_heartbeat(self.view, beat)
        self._display.update(self.view)

    def step(self, step: Step) -> None:
        self.view = with_step(self.view, step.attempt, step.step, step.at, step.values)
        self._display.step(self.view)

    def note(self, note: Note) -> None:
        self.view = with_event(self.view, note)
        self._display.note(note)

    def mood(self, mood: Mood, notice: str = "") -> None:
        self.view = with_mood(self.view, mood, notice)
        self._display.update(self.view)
