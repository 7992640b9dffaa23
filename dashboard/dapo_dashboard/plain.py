"""Text that others wrote, shown as text: a name or an answer is never markdown, HTML or a formula. Pure."""

import re
from typing import Final

MAX_CHARACTERS: Final = 20_000
_MARKDOWN: Final = re.compile(r"([\\`*_{}\[\]()<>#+\-.!|~$:&@/=^\"'])")
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\u202a-\u202e\u2066-\u2069]")


def markdown(text: object, limit: int = 300) -> str:
    """One line that st.markdown shows literally."""
    return _MARKDOWN.sub(r"\\\1", shown(" ".join(str(text).split()), limit))


def shown(text: str, limit: int = MAX_CHARACTERS) -> str:
    """Text cut to `limit` characters, with characters that steer a terminal or turn the line around made visible."""
    cut = text if len(text) <= limit else f"{text[:limit]} [...] ({len(text):,} characters)"
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", cut)
