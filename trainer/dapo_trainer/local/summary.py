"""What is printed when a run has ended: what it learned, what it cost, and what to do next."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from dapo_core.db import open_reader
from dapo_core.errors import StoreError
from dapo_core.objectstore import open_store
from dapo_core.run.entries import Sample
from dapo_core.run.formatting import clock, duration, fit, minus, percent, plural
from dapo_core.run.metrics import validation_means
from dapo_trainer.groups.sample_log import read_samples
from dapo_trainer.local.run_view import RunView
from dapo_trainer.local.supervisor import RunOutcome

SAMPLES = 5
_TEXT = 160
TRIES = 5
_STYLES = {"done": "bold green", "failed": "bold red", "stopped": "bold yellow"}


@dataclass(frozen=True)
class ComparedResponses:
    """One prompt of a validation set with a response of the first model and one of the last."""

    prompt: str
    before: str
    before_right: bool | None
    after: str
    after_right: bool | None


def summary(
    view: RunView,
    outcome: RunOutcome,
    seconds: float,
    responses: Sequence[ComparedResponses],
    files: Mapping[str, str],
    log_tail: Sequence[str] = (),
    curves: RenderableType | None = None,
) -> RenderableType:
    """What the terminal shows at the end, in the order of interest, without empty parts; `files` are paths by name."""
    parts: list[RenderableType] = [Text(), _headline(view, outcome, seconds)]
    if outcome.mood == "failed":
        parts += [Text(f"  {outcome.message}", "red"), *(Text(f"  | {line}", "dim") for line in log_tail)]
    learned = (curves, _accuracy(view), _responses(responses))
    for part in (*learned, _times(view, seconds), _files(files), _commands(view, outcome)):
        if part is not None:
            parts += [Text(), part]
    return Group(*parts)


def _headline(view: RunView, outcome: RunOutcome, seconds: float) -> Text:
    of = f" of {view.total_steps:,}" if view.total_steps else ""
    restarts = f", {plural(view.restarts, 'restart')}" if view.restarts else ""
    return Text.assemble(
        (f" {outcome.mood.upper()} ", f"reverse {_STYLES.get(outcome.mood, 'bold')}"),
        (f" {view.run_id}", "bold"),
        f"  {view.step or 0:,}{of} steps in {clock(seconds)}{restarts}",
    )


def _accuracy(view: RunView) -> RenderableType | None:
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


def _responses(pairs: Sequence[ComparedResponses]) -> RenderableType | None:
    lines = Text("  Responses to the same prompts, before and after", "bold")
    for pair in pairs[:SAMPLES]:
        lines.append(f"\n  {_one_line(pair.prompt)}\n", "bold cyan")
        lines.append_text(_response("before", pair.before, pair.before_right)).append("\n")
        lines.append_text(_response("after ", pair.after, pair.after_right))
    return lines if pairs else None


def _response(when: str, text: str, right: bool | None) -> Text:
    verdict, style = {True: ("right", "green"), False: ("wrong", "red"), None: ("", "")}[right]
    return Text.assemble((f"    {when} ", "dim"), (f"{verdict:<6}", style), _one_line(text))


def _one_line(text: str) -> str:
    return fit(" ".join(text.split()), _TEXT)


def _times(view: RunView, seconds: float) -> RenderableType | None:
    totals = view.total_stage_seconds()
    if not totals:
        return None
    by_size = sorted(totals.items(), key=lambda entry: -entry[1])
    rest = seconds - sum(totals.values())
    # A resumed run has steps of earlier calls: then the time of this call is not the whole.
    by_size += [("startup and other", rest)] if rest > 0 else []
    whole = seconds if rest > 0 else sum(totals.values())
    rows = [(phase, f"{duration(spent):<9}{percent(spent / whole)}") for phase, spent in by_size]
    return _table("Time", rows)


def _files(files: Mapping[str, str]) -> RenderableType | None:
    return _table("Files", list(files.items())) if files else None


def _commands(view: RunView, outcome: RunOutcome) -> RenderableType:
    rows = [(f"dapo show {view.run_id}", "its curves, attempts and events")]
    if outcome.mood != "done":
        rows.insert(0, (f"dapo resume {view.run_id}", "resume from its newest checkpoint"))
    return _table("Next", rows, "bold cyan")


def _table(title: str, rows: Sequence[tuple[str, str]], style: str = "dim") -> RenderableType:
    grid = Table.grid(padding=(0, 2, 0, 0))
    for left, right in rows:
        grid.add_row(Text(f"    {left}", style), Text(right, overflow="fold"))
    return Group(Text(f"  {title}", "bold"), grid)


def compared_responses(metadata_url: str, store_url: str, run_id: str) -> list[ComparedResponses]:
    """Responses to the same prompts at the run's first and last validation.

    Empty when the run logged fewer than two sets of samples, or they cannot be read.
    """
    try:
        rows = open_reader(metadata_url).samples(run_id)
        store = open_store(store_url)
        before = read_samples(store, rows[-1].key) if len(rows) > 1 else []
        # The newest samples may be of training prompts alone, which no other step has.
        compared = (pairs(before, read_samples(store, row.key)) for row in rows[: min(TRIES, len(rows) - 1)])
        return next((pairs_of_step for pairs_of_step in compared if pairs_of_step), [])
    except (StoreError, ValueError, TypeError):
        return []  # of another version, or damaged: the run is not affected


def pairs(before: Sequence[Sample], after: Sequence[Sample], count: int = SAMPLES) -> list[ComparedResponses]:
    """Up to `count` prompts that are in both, spread over the set, each with its first response of both. Pure."""
    first = {sample.prompt: sample for sample in reversed(before)}
    last = {sample.prompt: sample for sample in reversed(after)}
    common = [prompt for prompt in dict.fromkeys(sample.prompt for sample in before) if prompt in last]
    chosen = [common[index * len(common) // count] for index in range(count)] if len(common) > count else common
    return [_compared(first[prompt], last[prompt]) for prompt in chosen]


def _compared(before: Sample, after: Sample) -> ComparedResponses:
    return ComparedResponses(
        prompt=before.prompt,
        before=before.response,
        before_right=before.is_right,
        after=after.response,
        after_right=after.is_right,
    )
