"""What commands print: names, messages and keys that others wrote are shown as text, never as markup or as what
controls a terminal."""

from collections.abc import Iterator
from dataclasses import dataclass

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from dapo_core.run.formatting import printable


def say(text: str, *, err: bool = False) -> None:
    """Print a line to stdout, or to stderr."""
    typer.echo(printable(text), err=err)


def print_all(*parts: RenderableType) -> None:
    """Print tables and paragraphs to stdout."""
    text_console().print(*map(AsText, parts), sep="\n")


def text_console() -> Console:
    """A console for which brackets and colons are no markup."""
    return Console(markup=False, emoji=False)


@dataclass(frozen=True)
class AsText:
    """Whatever the store contains, shown as text: without the terminal's control sequences. To be printed by a console
    without markup."""

    shown: RenderableType

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        for segment in console.render(self.shown, options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)
