"""What is told when a run has ended: what it learned, what it cost, and what to do next."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from dapo_core.run.formatting import clock, duration, fit, minus, percent, plural
from dapo_core.run.metrics import validation_means
from dapo_trainer.local.supervisor import Outcome
from dapo_trainer.local.view_model import View

SAMPLES = 5
_TEXT = 160
_STYLES = {"done": "bold green", "failed": "bold red", "stopped": "bold yellow"}


@dataclass(frozen=True)
class Answer:
    """One prompt of a validation set with an answer of the first model and one of the last."""

    prompt: str
    before: str
    before_right: bool | None
    after: str
    after_right: bool | None


@dataclass(frozen=True)
class Place:
    """A file or folder the run leaves behind."""

    name: str
    path: str


def summary(
    view: View,
    outcome: Outcome,
    seconds: float,
    answers: Sequence[Answer],
    places: Sequence[Place],
    log_tail: Sequence[str] = (),
    curves: RenderableType | None = None,
) -> RenderableType:
    """Everything there is to say, in the order of interest; parts without content are left out."""
    parts: list[RenderableType] = [Text(), _headline(view, outcome, seconds)]
    if outcome.mood == "failed":
        parts += [Text(f"  {outcome.message}", "red"), *(Text(f"  | {line}", "dim") for line in log_tail)]
    learned = (curves, _accuracy(view), _answers(answers))
    for part in (*learned, _times(view, seconds), _places(places), _commands(view, outcome)):
        if part is not None:
            parts += [Text(), part]
    return Group(*parts)


def _headline(view: View, outcome: Outcome, seconds: float) -> Text:
    of = f" of {view.total_steps:,}" if view.total_steps else ""
    restarts = f", {plural(view.restarts, 'restart')}" if view.restarts else ""
    return Text.assemble(
        (f" {outcome.mood.upper()} ", f"reverse {_STYLES.get(outcome.mood, 'bold')}"),
        (f" {view.run_id}", "bold"),
        f"  {view.step or 0:,}{of} steps in {clock(seconds)}{restarts}",
    )


def _accuracy(view: View) -> RenderableType | None:
    table = Table(box=None, padding=(0, 2), header_style="bold")
    for column in ("Validation", "before", "after", "change"):
        table.add_column(column, justify="left" if column == "Validation" else "right")
    for metric, validation in validation_means(view.curves).items():
        curve = view.curve(metric)
        (first, before), (last, after) = curve[0], curve[-1]
        gain = minus(f"{(after - before) * 100:+.1f} points") if len(curve) > 1 else ""
        style = "green" if after > before else "red"
        row = (f"{percent(before)} (step {first})", f"{percent(after)} (step {last})", Text(gain, style))
        table.add_row(f"{validation.set_name} {validation.title}", *row)
    return table if table.row_count else None


def _answers(answers: Sequence[Answer]) -> RenderableType | None:
    lines = Text("  Answers to the same prompts, before and after", "bold")
    for answer in answers[:SAMPLES]:
        lines.append(f"\n  {_one_line(answer.prompt)}\n", "bold cyan")
        lines.append_text(_reply("before", answer.before, answer.before_right)).append("\n")
        lines.append_text(_reply("after ", answer.after, answer.after_right))
    return lines if answers else None


def _reply(when: str, text: str, right: bool | None) -> Text:
    verdict, style = {True: ("right", "green"), False: ("wrong", "red"), None: ("", "")}[right]
    return Text.assemble((f"    {when} ", "dim"), (f"{verdict:<6}", style), _one_line(text))


def _one_line(text: str) -> str:
    return fit(" ".join(text.split()), _TEXT)


def _times(view: View, seconds: float) -> RenderableType | None:
    totals = view.total_stage_seconds()
    if not totals:
        return None
    by_size = sorted(totals.items(), key=lambda entry: -entry[1])
    rest = seconds - sum(totals.values())
    # A resumed run has steps of an earlier day: then the time of this call is no whole to take shares of.
    by_size += [("start and the rest", rest)] if rest > 0 else []
    whole = seconds if rest > 0 else sum(totals.values())
    rows = [(phase, f"{duration(spent):<9}{percent(spent / whole)}") for phase, spent in by_size]
    return _pairs("Time", rows)


def _places(places: Sequence[Place]) -> RenderableType | None:
    return _pairs("Files", [(place.name, place.path) for place in places]) if places else None


def _commands(view: View, outcome: Outcome) -> RenderableType:
    rows = [(f"dapo show {view.run_id}", "its curves, attempts and events")]
    if outcome.mood != "done":
        rows.insert(0, (f"dapo resume {view.run_id}", "go on from its newest checkpoint"))
    return _pairs("Next", rows, "bold cyan")


def _pairs(title: str, rows: Sequence[tuple[str, str]], style: str = "dim") -> RenderableType:
    grid = Table.grid(padding=(0, 2, 0, 0))
    for left, right in rows:
        grid.add_row(Text(f"    {left}", style), Text(right, overflow="fold"))
    return Group(Text(f"  {title}", "bold"), grid)
