"""The live view as lines of text, for any size of terminal. Pure: the same state, size and time give the same lines."""

from dataclasses import dataclass
from datetime import datetime

from rich.text import Text

from dapo_core.run.formatting import Glyphs, clock, duration, fit, plural
from dapo_core.run.metrics import STAGES
from dapo_trainer.local.run_view import Mood, Note, RunView
from dapo_trainer.local.text_charts import bars, charts, figures

MIN_WIDTH = 40
DEFAULT_GLYPHS = Glyphs()
_SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_PLAIN = str.maketrans("…·→▲▼◆\N{MINUS SIGN}", ".->+-*-")
_MOODS: dict[Mood, tuple[str, str]] = {
    "running": ("", ""),
    "waiting": ("waiting to restart", "yellow"),
    "stopping": ("stopping", "yellow"),
    "done": ("done", "bold green"),
    "failed": ("failed", "bold red"),
    "stopped": ("stopped", "yellow"),
}


@dataclass(frozen=True)
class Screen:
    """The terminal: its size in characters, what it can show, and the Unix time of the picture."""

    width: int
    height: int
    now: float
    glyphs: Glyphs = DEFAULT_GLYPHS

    @property
    def dot(self) -> str:
        return " - " if self.glyphs.ascii else " · "


def render(view: RunView, screen: Screen) -> list[Text]:
    """At most `screen.height` lines, none wider than `screen.width`."""
    head = [*_header(view, screen), Text(), _progress(view, screen), _phase(view, screen), Text()]
    numbers = bars(view, screen.width, screen.glyphs)
    numbers.append(Text(fit(" " + screen.dot.join(figures(view)), screen.width), "dim"))
    foot = [_foot(view, screen)]
    room = screen.height - len(head) - len(numbers) - len(foot)
    rows = max(1, min(5, (room - 6) // 4))
    drawn = charts(view, screen.width, rows, screen.glyphs)
    left = room - len(drawn) - 2
    events = _events(view, screen, left - 1) if left > 1 else []
    gap = [Text()] if room - len(drawn) >= 2 else []
    lines = [*head, *drawn, *gap, *numbers, *gap, *events]
    lines = lines[: screen.height - 1]
    lines += [Text()] * (screen.height - 1 - len(lines)) + foot
    return [_cropped(line, screen) for line in lines]


def _cropped(line: Text, screen: Screen) -> Text:
    if screen.glyphs.ascii:
        line = _ascii(line)
    line.truncate(screen.width)
    line.no_wrap = True
    return line


def _ascii(line: Text) -> Text:
    line.plain = line.plain.translate(_PLAIN)
    return line


def sides(left: Text, right: Text, width: int) -> Text:
    """`left` and `right` at the two ends of a line; the left one gives way."""
    gap = width - left.cell_len - right.cell_len
    if gap < 1:
        left = left.copy()
        left.truncate(max(0, width - right.cell_len - 1), overflow="ellipsis")
        gap = max(1, width - left.cell_len - right.cell_len)
    return Text.assemble(left, " " * gap, right)


def _header(view: RunView, screen: Screen) -> list[Text]:
    word, style = _MOODS[view.mood]
    attempt = f"attempt {max(1, view.attempt)}{screen.dot}{view.restarts} of {plural(view.max_restarts, 'restart')}"
    right = Text.assemble((word, style), screen.dot if word else "", (attempt, "yellow" if view.restarts else "dim"))
    elapsed = f"elapsed {clock(screen.now - view.started_at)}"
    where = screen.dot.join([view.model, view.mode])
    return [
        sides(Text.assemble((" DAPO ", "bold reverse cyan"), " ", (view.run_id, "bold")), right, screen.width),
        sides(Text(f" {where}", "dim"), Text.assemble((elapsed, "dim"), screen.dot, _left(view)), screen.width),
    ]


def _left(view: RunView) -> Text:
    seconds = view.seconds_left()
    if view.mood in ("done", "failed", "stopped"):
        return Text("ended", "dim")
    return Text("time left unknown", "dim") if seconds is None else Text(f"about {duration(seconds)} left", "bold")


def _progress(view: RunView, screen: Screen) -> Text:
    total = view.total_steps
    step = view.step or 0
    label = f"step {step:,}" + (f" of {total:,}" if total else "")
    share = min(1.0, step / total) if total else 0.0
    right = Text.assemble((label, "bold"), f"{int(share * 100):>5}% " if total else " ")
    width = max(8, screen.width - right.cell_len - 3)
    full = int(share * width)
    marks = ("#", ".") if screen.glyphs.ascii else ("━", "─")
    return Text.assemble(" ", (marks[0] * full, "bold cyan"), (marks[1] * (width - full), "dim"), "  ", right)


def _phase(view: RunView, screen: Screen) -> Text:
    age = max(0.0, screen.now - view.phase_since) if view.phase_since else 0.0
    spin = "*" if screen.glyphs.ascii else _SPINNER[int(screen.now * 8) % len(_SPINNER)]
    if view.mood != "running" and view.mood != "stopping":
        return Text(f" {view.notice}")
    line = Text.assemble(" ", (spin, "cyan"), " ")
    if view.phase in STAGES:
        shown = [name for name in STAGES if name in STAGES[:4] or name == view.phase]
        for at, name in enumerate(shown):
            line.append(" → " if at else "", "dim").append(name, "bold cyan" if name == view.phase else "dim")
    else:
        line.append(view.phase, "bold cyan")
    detail = f"{view.detail}  " if view.detail else ""
    return sides(line, Text.assemble((detail, "default"), (f"{duration(age)} ", "bold")), screen.width)


def _events(view: RunView, screen: Screen, rows: int) -> list[Text]:
    return [_event(note, screen) for note in view.events[-rows:]] if rows > 0 else []


def _event(note: Note, screen: Screen) -> Text:
    at = f"{datetime.fromtimestamp(note.at):%H:%M:%S}"
    style = "yellow" if note.warning else "green"
    line = Text.assemble(" ", (at, "dim"), "  ", (note.reason, style), "  ", note.message)
    line.truncate(screen.width - 1, overflow="ellipsis")
    return line


def _foot(view: RunView, screen: Screen) -> Text:
    if view.mood != "running":
        return Text(fit(f" {view.notice}", screen.width), "bold yellow")
    log = f"{screen.dot}log {view.log}" if view.log else ""
    return Text(fit(f" Ctrl-C saves a checkpoint and stops{log}", screen.width), "dim")
