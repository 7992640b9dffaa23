"""What changed between two answers, word by word, as HTML in which nothing of the answers is HTML. Pure."""

import html
import re
from difflib import SequenceMatcher
from functools import lru_cache
from typing import Final

from dapo_dashboard.plain import shown

MAX_WORDS: Final = 3_000
# A word with the space behind it: spaces by themselves are so many that to compare them takes most of the time.
_WORD: Final = re.compile(r"\S+\s?|\s")
_STYLE: Final = "white-space:pre-wrap;overflow-wrap:anywhere;font-family:monospace;font-size:.85rem;line-height:1.5"
_GONE: Final = "background:rgba(217,102,43,.28);text-decoration:line-through"
_NEW: Final = "background:rgba(31,161,135,.30);text-decoration:underline"


# A live page asks for the same again every other second.
@lru_cache(maxsize=64)
def diff_html(before: str, after: str) -> tuple[str, str]:
    """Both texts, with what is only in the first struck out and what is only in the second underlined."""
    old, new = _words(before), _words(after)
    left: list[str] = []
    right: list[str] = []
    for kind, a, b, c, d in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        left.append(_part("del", _GONE, old[a:b]) if kind != "equal" else _plain(old[a:b]))
        right.append(_part("ins", _NEW, new[c:d]) if kind != "equal" else _plain(new[c:d]))
    return _block(left), _block(right)


def text_html(text: str) -> str:
    """One text, as text."""
    return _block([_plain(_words(text))])


def _words(text: str) -> list[str]:
    return _WORD.findall(shown(text))[:MAX_WORDS]


def _plain(words: list[str]) -> str:
    return html.escape("".join(words))


def _part(tag: str, style: str, words: list[str]) -> str:
    return f'<{tag} style="{style}">{_plain(words)}</{tag}>' if words else ""


def _block(parts: list[str]) -> str:
    return f'<div style="{_STYLE}">{"".join(parts)}</div>'
