"""Numbers, times and places as people read them."""

import math
from pathlib import Path

MINUS = "\N{MINUS SIGN}"


def clock(seconds: float) -> str:
    """`04:12`, `1:04:12`, `2d 03:04`."""
    whole = max(0, int(seconds))
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes:02d}:{rest:02d}"
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return f"{hours}:{minutes:02d}:{rest:02d}"
    days, hours = divmod(hours, 24)
    return f"{days}d {hours:02d}:{minutes:02d}"


def span(seconds: float) -> str:
    """A duration in a sentence: `0.8 s`, `12 s`, `4 min`, `2.5 h`."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def number(value: float | None, digits: int = 3) -> str:
    """About `digits` figures, thousands set apart, never an exponent between 0.001 and a billion."""
    if value is None or not math.isfinite(value):
        return "-" if value is None else str(value)
    if value == int(value) and abs(value) < 1e9:
        return signed_minus(f"{value:,.0f}")
    if not 1e-3 <= abs(value) < 1e9:
        mantissa, _, exponent = f"{value:.{max(0, digits - 2)}e}".partition("e")
        return signed_minus(f"{mantissa}e{int(exponent)}")
    places = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return signed_minus(f"{value:,.{places}f}")


def percent(share: float | None) -> str:
    """`7.4 %`, `71 %`; `-` for none."""
    if share is None:
        return "-"
    value = share * 100
    return signed_minus(f"{value:.0f} %" if abs(value) >= 10 or value == int(value) else f"{value:.1f} %")


def signed_minus(text: str) -> str:
    """A hyphen in front of a number as a minus sign, which is as wide as a plus."""
    return text.replace("-", MINUS, 1) if text.startswith("-") else text


def count(amount: int, one: str, many: str | None = None) -> str:
    """`1 restart`, `2 restarts`."""
    return f"{amount:,} {one if amount == 1 else many or one + 's'}"


def fit(text: str, width: int) -> str:
    """At most `width` characters, the cut shown."""
    return text if len(text) <= width else text[: max(0, width - 1)] + "…"[: max(0, width)]


def size(count_of_bytes: int) -> str:
    """`812 B`, `11.3 MB`, in powers of ten as disks are sold."""
    value, unit = float(count_of_bytes), "B"
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if value < 1000 or unit == "TB":
            break
        value /= 1000
    return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.1f} {unit}"


def sentence(text: str) -> str:
    """With its full stop, so that another sentence can follow."""
    return text if text.rstrip().endswith((".", "!", "?")) else f"{text.rstrip()}."


def shown_path(path: Path) -> str:
    """Relative to the working folder where it lies in it: shorter, and still to be copied."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
