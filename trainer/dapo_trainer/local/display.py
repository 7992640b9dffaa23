"""Where a run is shown: the live view on a terminal, lines elsewhere, or nowhere."""

import os
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Protocol

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.text import Text

from dapo_core.run.sparkline import Glyphs
from dapo_trainer.local.lines import note_line, phase_line, step_line
from dapo_trainer.local.measures import charts
from dapo_trainer.local.render import MIN_WIDTH, Screen, render
from dapo_trainer.local.view_model import Note, View

REFRESH_SECONDS = 0.25
CURVE_ROWS = 3
# A closed terminal or pipe; rich turns the latter into SystemExit.
UNREADABLE = (OSError, SystemExit)


class Display(Protocol):
    """Told of everything that changes. What it shows never decides about the run."""

    def update(self, view: View) -> None:
        """The state at this moment; called several times a second."""

    def step(self, view: View) -> None:
        """A step was finished: `view.step`."""

    def note(self, note: Note) -> None:
        """Something happened."""


class Silent:
    """Shows nothing (`--quiet`)."""

    def update(self, view: View) -> None: ...

    def step(self, view: View) -> None: ...

    def note(self, note: Note) -> None: ...


class Lines:
    """One line a step and an event, without control codes."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._phase = ""

    def update(self, view: View) -> None:
        # Before the first step, the phases are all there is to see; later they would drown the steps.
        line = phase_line(view)
        if line != self._phase and view.step_at is None:
            self._phase = line
            self._write(line)

    def step(self, view: View) -> None:
        self._write(step_line(view))

    def note(self, note: Note) -> None:
        self._write(note_line(note))


class Picture:
    """The view as something rich draws at the size the terminal has then."""

    def __init__(self, view: View, glyphs: Glyphs, now: float | None = None) -> None:
        self.view = view
        self._glyphs = glyphs
        self._now = now

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        now = time.time() if self._now is None else self._now
        size = Screen(max(MIN_WIDTH, options.max_width), options.height or console.height, now, self._glyphs)
        yield Text("\n", no_wrap=True, end="").join(render(self.view, size))


class Curves:
    """The charts of a run alone, to be left in the terminal when the view is gone."""

    def __init__(self, view: View, glyphs: Glyphs) -> None:
        self._view = view
        self._glyphs = glyphs

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from charts(self._view, options.max_width, CURVE_ROWS, self._glyphs)


class LiveView:
    """The whole terminal, drawn anew a few times a second."""

    def __init__(self, live: Live, glyphs: Glyphs) -> None:
        self._live = live
        self._glyphs = glyphs
        self._drawn = 0.0

    def update(self, view: View) -> None:
        if time.monotonic() - self._drawn >= REFRESH_SECONDS:
            self._live.update(Picture(view, self._glyphs), refresh=True)
            self._drawn = time.monotonic()

    def step(self, view: View) -> None: ...

    def note(self, note: Note) -> None: ...


class Forgiving:
    """Another display, given up at the first failed write: a closed terminal or pipe must not end the training."""

    def __init__(self, display: Display) -> None:
        self._display = display

    def update(self, view: View) -> None:
        self._try(lambda: self._display.update(view))

    def step(self, view: View) -> None:
        self._try(lambda: self._display.step(view))

    def note(self, note: Note) -> None:
        self._try(lambda: self._display.note(note))

    def _try(self, show: Callable[[], None]) -> None:
        try:
            show()
        except UNREADABLE:
            self._display = Silent()
            discard_output()


def discard_output() -> None:
    """Nobody reads standard output any more: the rest goes nowhere, and the flush at exit does not fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def glyphs_of(console: Console) -> Glyphs:
    """ASCII where the output's encoding has no more, blocks on the Linux console, whose font lacks braille."""
    return Glyphs(braille=os.environ.get("TERM") != "linux", ascii=not console.encoding.startswith("utf"))


@contextmanager
def displayed(console: Console, *, plain: bool, quiet: bool) -> Iterator[Display]:
    """The display that fits the output, for the time of the block; the terminal is as before afterwards."""
    if quiet:
        yield Silent()
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
    """Keys typed meanwhile do not spoil the picture; Ctrl-C still interrupts."""
    before = termios.tcgetattr(terminal)
    silent = [*before]
    silent[3] = int(before[3]) & ~termios.ECHO
    termios.tcsetattr(terminal, termios.TCSADRAIN, silent)
    try:
        yield
    finally:
        with suppress(termios.error):
            termios.tcsetattr(terminal, termios.TCSADRAIN, before)
