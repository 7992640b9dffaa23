"""What a page has many of, as plain HTML: a browser draws it in a tenth of the time of as many elements. Pure.

Text of others is escaped here; `app.STYLE` says how it looks."""

from collections.abc import Mapping
from html import escape
from urllib.parse import quote

from dapo_dashboard.plain import shown


def figures(values: Mapping[str, str]) -> str:
    """Names and values side by side."""
    pairs = "".join(f"<div><dt>{_text(name)}</dt><dd>{_text(value)}</dd></div>" for name, value in values.items())
    return f'<dl class="dapo-figures">{pairs}</dl>'


def title(name: str, unit: str, topic: str) -> str:
    """The head of a chart, with a way to what the help says of it."""
    told = f"<small>{_text(unit)}</small>" if unit else ""
    link = f'<a href="help?topic={quote(topic)}" aria-label="What {_text(name)} means" title="What this means">?</a>'
    return f'<div class="dapo-title"><b>{_text(name)}</b>{told}{link}</div>'


def _text(text: str) -> str:
    return escape(shown(text, 160))
