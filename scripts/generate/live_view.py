"""Draw the live view of a run as a picture: `python scripts/generate/live_view.py RUN docs/images/live-view.svg`."""

import re
from dataclasses import replace
from html import escape, unescape
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from dapo_core.db import open_reader
from dapo_core.run.home import Home
from dapo_trainer.local.run_view import RunView, first_view, with_heartbeat, with_history
from dapo_trainer.local.screen import Screen, render
from dapo_trainer.process.run_folder import find_run
from dapo_trainer.process.trainer_process import Heartbeat

# A picture in a page may load nothing from elsewhere; the reader's own monospaced font serves.
_TEXT = re.compile(
    r'(?P<head><text class="[^"]*")'
    r' x="(?P<x>[^"]*)" y="(?P<y>[^"]*)" textLength="(?P<length>[^"]*)"(?P<rest>[^>]*)>(?P<text>[^<]*)</text>'
)
_PART = re.compile(r"[!-~]+|\S")
_ELSEWHERE = re.compile(r"@font-face \{.*?\}\s*|<!--.*?-->\s*", re.DOTALL)


def live_svg(view: RunView, now: float, width: int = 100, height: int = 30) -> str:
    """The view at one moment as an SVG of `width` x `height` characters."""
    console = Console(width=width, height=height, record=True, file=Path("/dev/null").open("w"), force_terminal=True)
    with console.file:
        console.print(Text("\n", end="").join(render(view, Screen(width, height, now))))
        return _TEXT.sub(_placed, _ELSEWHERE.sub("", console.export_svg(title="dapo run", unique_id="live")))


def _placed(match: re.Match[str]) -> str:
    """A piece of text with each word and each symbol at its own place: fonts differ in how wide these are."""
    text = unescape(match["text"]).replace("\N{NO-BREAK SPACE}", " ")
    left, step = float(match["x"]), float(match["length"]) / max(1, len(text))
    return "".join(
        f'{match["head"]} x="{left + part.start() * step:.1f}" y="{match["y"]}"{match["rest"]}>{escape(part[0])}</text>'
        for part in _PART.finditer(text)
    )


def export(
    run: Annotated[str, typer.Argument(help="Run ID, or job name (its latest run).")],
    target: Annotated[Path, typer.Argument(help="The SVG file to write.")],
    home: Annotated[Path | None, typer.Option(help="Folder of all runs. Default: DAPO_HOME, else ./runs.")] = None,
    step: Annotated[int | None, typer.Option(help="Show the run as it was after this step.")] = None,
) -> None:
    """Draw a run as its live view showed it."""
    place = Home.find(home)
    folder = find_run(place, run)
    reader = open_reader(place.metadata_url)
    began = min((attempt.started_at for attempt in reader.attempts(folder.run_id)), default=0.0)
    view = with_history(first_view(folder.run_id, folder.read_job(), began), reader, until_step=step)
    now = began if view.step_at is None else view.step_at + 1.2
    beat = Heartbeat("update", (view.step or 0) + 1, view.total_steps or 0, now - 1.2)
    restarts = sum(bool(attempt.counted) for attempt in reader.attempts(folder.run_id))
    view = replace(with_heartbeat(view, beat), restarts=restarts)
    view = replace(view, events=tuple(note for note in view.events if note.at <= now))
    target.write_text(live_svg(view, now))


if __name__ == "__main__":
    typer.run(export)
