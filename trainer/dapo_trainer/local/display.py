"""Where a run is shown: the live view on a terminal, lines elsewhere, or nowhere."""

import os
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import replace
from datetime import datetime
from typing import Protocol

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.text import Text

from dapo_core.run import metrics
from dapo_core.run.formatting import Glyphs, duration, number, percent
from dapo_core.run.metrics import Headline
from dapo_trainer.local.run_view import (
    FinishedStep,
    Mood,
    Note,
    RunView,
    with_attempt,
    with_event,
    with_heartbeat,
    with_mood,
    with_step,
)
from dapo_trainer.local.screen import MIN_WIDTH, Screen, render
from dapo_trainer.local.text_charts import charts
from dapo_trainer.process.trainer_process import Heartbeat

REFRESH_SECONDS = 0.25
CURVE_ROWS = 3
# A closed terminal or pipe; rich turns the latter into SystemExit.
UNREADABLE = (OSError, SystemExit)


class Display(Protocol):
    """Shows everything that changes. It never decides about the run."""

    def update(self, view: RunView) -> None:
        """The state at this moment; called several times a second."""

    def step(self, view: RunView) -> None:
        """A step was finished: `view.step`."""

    def note(self, note: Note) -> None:
        """Something happened."""


class NoDisplay:
    """Shows nothing (`--quiet`)."""

    def update(self, view: RunView) -> None: ...

    def step(self, view: RunView) -> None: ...

    def note(self, note: Note) -> None: ...


class Lines:
    """One line for each step and event, without control codes."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._phase = ""

    def update(self, view: RunView) -> None:
        # Before the first step, the phases are all there is to see; later they would drown the steps.
        line = phase_line(view)
        if line != self._phase and view.step_at is None:
            self._phase = line
            self._write(line)

    def step(self, view: RunView) -> None:
        self._write(step_line(view))

    def note(self, note: Note) -> None:
        self._write(note_line(note))


class Picture:
    """The view as something rich draws at the size the terminal has then."""

    def __init__(self, view: RunView, glyphs: Glyphs, now: float | None = None) -> None:
        self.view = view
        self._glyphs = glyphs
        self._now = now

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        now = time.time() if self._now is None else self._now
        size = Screen(max(MIN_WIDTH, options.max_width), options.height or console.height, now, self._glyphs)
        yield Text("\n", no_wrap=True, end="").join(render(self.view, size))


class Curves:
    """Only the charts of a run, which stay in the terminal after the live view."""

    def __init__(self, view: RunView, glyphs: Glyphs) -> None:
        self._view = view
        self._glyphs = glyphs

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from charts(self._view, options.max_width, CURVE_ROWS, self._glyphs)


class LiveView:
    """The whole terminal, redrawn a few times per second."""

    def __init__(self, live: Live, glyphs: Glyphs) -> None:
        self._live = live
        self._glyphs = glyphs
        self._drawn = 0.0

    def update(self, view: RunView) -> None:
        if time.monotonic() - self._drawn >= REFRESH_SECONDS:
            self._live.update(Picture(view, self._glyphs), refresh=True)
            self._drawn = time.monotonic()

    def step(self, view: RunView) -> None: ...

    def note(self, note: Note) -> None: ...


class Forgiving:
    """Another display, given up at the first failed write: a closed terminal or pipe must not end the training."""

    def __init__(self, display: Display) -> None:
        self._display = display

    def update(self, view: RunView) -> None:
        self._try(lambda: self._display.update(view))

    def step(self, view: RunView) -> None:
        self._try(lambda: self._display.step(view))

    def note(self, note: Note) -> None:
        self._try(lambda: self._display.note(note))

    def _try(self, show: Callable[[], None]) -> None:
        try:
            show()
        except UNREADABLE:
            self._display = NoDisplay()
            discard_output()


class Presenter:
    """Keeps the view of a run up to date and shows it."""

    def __init__(self, view: RunView, display: Display, now: Callable[[], float] = time.time) -> None:
        self.view = view
        self._display = display
        self._now = now

    def attempt(self, number: int, restarts: int, log: str) -> None:
        self.view = replace(with_attempt(self.view, number, restarts, self._now()), log=log)

    def look(self, beat: Heartbeat | None) -> None:
        """Show the present moment; called at every turn of the loop."""
        self.view = with_heartbeat(self.view, beat)
        self._display.update(self.view)

    def step(self, step: FinishedStep) -> None:
        self.view = with_step(self.view, step.attempt, step.step, step.at, step.values)
        self._display.step(self.view)

    def note(self, note: Note) -> None:
        self.view = with_event(self.view, note)
        self._display.note(note)

    def mood(self, mood: Mood, notice: str = "") -> None:
        self.view = with_mood(self.view, mood, notice)
        self._display.update(self.view)


def discard_output() -> None:
    """Nobody reads standard output any more: discard the rest, and do not fail in the flush at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def glyphs_of(console: Console) -> Glyphs:
    """ASCII where the output's encoding has no more, blocks on the Linux console, whose font lacks braille."""
    return Glyphs(braille=os.environ.get("TERM") != "linux", ascii=not console.encoding.startswith("utf"))


@contextmanager
def displayed(console: Console, *, plain: bool, quiet: bool) -> Iterator[Display]:
    """The display that fits the output, within the block; afterwards the terminal is as before."""
    if quiet:
        yield NoDisplay()
    elif plain:
        yield Forgiving(Lines(lambda line: print(line, file=console.file, flush=True)))
    else:
        with _no_echo():
            live = Live(console=console, screen=True, auto_refresh=False, vertical_overflow="crop")
            live.start()
            try:
                yield Forgiving(LiveView(live, glyphs_of(console)))
            finally:
                with suppress(*UNREADABLE):
                    live.stop()


def _no_echo() -> AbstractContextManager[None]:
    return _quiet_keys(sys.stdin.fileno()) if sys.stdin.isatty() else nullcontext()


@contextmanager
def _quiet_keys(terminal: int) -> Iterator[None]:
    """Do not echo keys typed meanwhile; Ctrl-C still interrupts."""
    before = termios.tcgetattr(terminal)
    silent = [*before]
    silent[3] = int(before[3]) & ~termios.ECHO
    termios.tcsetattr(terminal, termios.TCSADRAIN, silent)
    try:
        yield
    finally:
        with suppress(termios.error):
            termios.tcsetattr(terminal, termios.TCSADRAIN, before)


def step_line(view: RunView) -> str:
    """`step 12/120  reward 0.36  accuracy 68 %  ...`: the values of the last step, those it has."""
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
    text = "  ".join(f"{name} {value}" for name, value in parts if value != "-")
    return f"{_time(view.step_at or 0.0)} step {step}{total}  {text}"


def note_line(note: Note) -> str:
    """An event with its time."""
    return f"{_time(note.at)} {'warning: ' if note.warning else ''}{note.reason}: {note.message}"


def phase_line(view: RunView) -> str:
    """What the trainer does, for the time before the first step."""
    return f"{_time(view.phase_since)} attempt {view.attempt} {view.phase}{': ' if view.detail else ''}{view.detail}"


def _time(at: float) -> str:
    return f"{datetime.fromtimestamp(at):%H:%M:%S}"
