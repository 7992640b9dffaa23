"""Numbers, shares, durations, sizes and times as every surface writes them. Pure; `-` stands for what is not known."""

import math
import re
from datetime import datetime

from rich import filesize

MINUS = "\N{MINUS SIGN}"
# What controls a terminal or the direction of text, and surrogates, which no database and no terminal takes.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def duration(seconds: float) -> str:
    """`0.8s`, `42s`, `3m05s`, `12m`, `2h05m`, `4d03h`: at most two units, never below zero."""
    if 0 < seconds < 10:
        return f"{seconds:.1f}".removesuffix(".0") + "s"
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s" if whole < 600 else f"{whole // 60}m"
    if whole < 86_400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86_400}d{whole % 86_400 // 3600:02d}h"


def clock(seconds: float) -> str:
    """A duration that is counted up on a screen: `04:12`, `1:04:12`, `2d 03:04`."""
    minutes, rest = divmod(max(0, int(seconds)), 60)
    if minutes < 60:
        return f"{minutes:02d}:{rest:02d}"
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return f"{hours}:{minutes:02d}:{rest:02d}"
    days, hours = divmod(hours, 24)
    return f"{days}d {hours:02d}:{minutes:02d}"


def moment(ts: float | None) -> str:
    """Local date and time of Unix seconds, to the second."""
    return "-" if ts is None else datetime.fromtimestamp(ts).strftime("%Y-%m-%d %H:%M:%S")


def ago(then: float | None, now: float) -> str:
    """`3m05s ago`."""
    return "-" if then is None else f"{duration(int(now - then))} ago"


def number(value: float | None, digits: int = 3) -> str:
    """`digits` significant digits, thousands set apart, an exponent only below 0.001 and from a billion on; `nan` and
    `inf` as such."""
    if value is None:
        return "-"
    if not math.isfinite(value):
        return str(value)
    if value and not 1e-3 <= abs(value) < 1e9:
        mantissa, _, exponent = f"{value:.{max(0, digits - 1)}e}".partition("e")
        return minus(f"{_trimmed(mantissa)}e{int(exponent)}")
    if value == int(value):
        return minus(f"{value:,.0f}")
    places = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return minus(_trimmed(f"{value:,.{places}f}"))


def _trimmed(text: str) -> str:
    return text.rstrip("0").rstrip(".") if "." in text else text


def percent(share: float | None) -> str:
    """A share of one as `7.4%`."""
    return "-" if share is None else minus(f"{share:.1%}")


def size(count: int | None) -> str:
    """Bytes in the largest fitting decimal unit: `812 bytes`, `11.3 MB`."""
    return "-" if count is None else filesize.decimal(count)


def plural(count: int, one: str, many: str | None = None) -> str:
    """`1 restart`, `2 restarts`."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def fit(text: str, width: int) -> str:
    """At most `width` characters, an ellipsis where it was cut."""
    return text if len(text) <= width else text[: max(0, width - 1)] + "…"[: max(0, width)]


def sentence(text: str) -> str:
    """`text` with its full stop, so that another sentence can follow."""
    return text if text.rstrip().endswith((".", "!", "?")) else f"{text.rstrip()}."


def minus(text: str) -> str:
    """A leading hyphen as a minus sign, which is as wide as a plus."""
    return text.replace("-", MINUS, 1) if text.startswith("-") else text


def printable(text: str) -> str:
    """Text that others wrote, with characters that control a terminal or cannot be encoded replaced; line breaks and
    tabs stay."""
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)
