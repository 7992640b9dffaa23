"""Text that others wrote (names, prompts, responses), shown as text: never as markdown, HTML or a formula. Pure.

Also the little HTML that pages have many of, which a browser draws in a tenth of the time of as many Streamlit
elements; `pages.app.STYLE` styles it."""

import html
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import lru_cache
from typing import Final

from dapo_core.run.formatting import duration, printable

MAX_CHARACTERS: Final = 20_000
MAX_WORDS: Final = 3_000
_MARKDOWN: Final = re.compile(r"([\\`*_{}\[\]()<>#+\-.!|~$:&@/=^\"'])")
# A word with the space behind it: spaces on their own are so many that comparing them takes most of the time.
_WORD: Final = re.compile(r"\S+\s?|\s")
_STYLE: Final = "white-space:pre-wrap;overflow-wrap:anywhere;font-family:monospace;font-size:.85rem;line-height:1.5"
_REMOVED: Final = "background:rgba(217,102,43,.28);text-decoration:line-through"
_ADDED: Final = "background:rgba(31,161,135,.30);text-decoration:underline"


def markdown(text: object, limit: int = 300) -> str:
    """One line that st.markdown shows literally."""
    return _MARKDOWN.sub(r"\\\1", shown(" ".join(str(text).split()), limit))


def shown(text: str, limit: int = MAX_CHARACTERS) -> str:
    """The text cut to `limit` characters, with characters that control a terminal or the text's direction replaced."""
    cut = text if len(text) <= limit else f"{text[:limit]} [...] ({len(text):,} characters)"
    return printable(cut)


@dataclass(frozen=True)
class Counting:
    """A duration of `seconds` that goes on; `browser/clock.js` counts."""

    seconds: float
    after: str = ""


def figures_html(values: Mapping[str, str | Counting], done: float | None = None) -> str:
    """Names and values side by side; below them a bar if `done`, a share of one, is known."""
    pairs = "".join(f"<div><dt>{_short(name)}</dt><dd>{_figure(value)}</dd></div>" for name, value in values.items())
    bar = "" if done is None else f'<div class="dapo-done"><i style="width:{100 * done:.1f}%"></i></div>'
    return f'<dl class="dapo-figures">{pairs}</dl>{bar}'


def _figure(value: str | Counting) -> str:
    if isinstance(value, str):
        return _short(value)
    seconds, after = int(value.seconds), html.escape(value.after)
    text = f"{duration(seconds)} {after}".rstrip()
    return f'<time data-dapo-seconds="{seconds}" data-dapo-after="{after}">{text}</time>'


def head_html(name: str, badges: Sequence[tuple[str, str]], about: str) -> str:
    """The name of what a page shows, badges with their colors, and a line about it."""
    line = f"<small>{html.escape(shown(about, 600))}</small>"
    return f'<div class="dapo-head"><h3>{_short(name)}</h3>{_badges(badges)}{line}</div>'


def badges_html(badges: Sequence[tuple[str, str]]) -> str:
    """Short texts with their colors."""
    return f'<div class="dapo-head">{_badges(badges)}</div>'


def _badges(badges: Sequence[tuple[str, str]]) -> str:
    return "".join(f'<span class="dapo-badge dapo-{color}">{_short(text)}</span>' for text, color in badges)


# A live page asks for the same diff every other second.
@lru_cache(maxsize=64)
def diff_html(before: str, after: str) -> tuple[str, str]:
    """Both texts, word by word: what is only in the first is struck out, what is only in the second underlined."""
    old, new = _words(before), _words(after)
    left: list[str] = []
    right: list[str] = []
    for kind, a, b, c, d in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        left.append(_part("del", _REMOVED, old[a:b]) if kind != "equal" else _plain(old[a:b]))
        right.append(_part("ins", _ADDED, new[c:d]) if kind != "equal" else _plain(new[c:d]))
    return _block(left), _block(right)


def text_html(text: str) -> str:
    """One text, as text."""
    return _block([_plain(_words(text))])


def _short(text: str) -> str:
    return html.escape(shown(text, 160))


def _words(text: str) -> list[str]:
    return _WORD.findall(shown(text))[:MAX_WORDS]


def _plain(words: list[str]) -> str:
    return html.escape("".join(words))


def _part(tag: str, style: str, words: list[str]) -> str:
    return f'<{tag} style="{style}">{_plain(words)}</{tag}>' if words else ""


def _block(parts: list[str]) -> str:
    return f'<div style="{_STYLE}">{"".join(parts)}</div>'
