"""Where a response states its answer. Pure."""

import re
from typing import Final

# The published rule reads the end of a response only; it also bounds the time a hostile response can take.
TAIL_CHARACTERS: Final = 300
_STATEMENT = re.compile(r"answer\s*:", re.IGNORECASE)
_BOX: Final = "\\boxed{"


def stated_answer(response: str) -> str | None:
    """What follows the last `Answer:` in the response's tail, to the end of its line; None when nothing is stated."""
    tail = response[-TAIL_CHARACTERS:]
    for match in reversed(list(_STATEMENT.finditer(tail))):
        rest = tail[match.end() :].strip()
        if rest:
            return _STATEMENT.split(rest.splitlines()[0])[0].strip()
    return None


def final_answer(response: str) -> str | None:
    r"""The stated answer; without one, what the last `\boxed{}` of the tail holds, as the published rule falls back."""
    stated = stated_answer(response)
    return _last_box(response[-TAIL_CHARACTERS:]) if stated is None else stated


def _last_box(tail: str) -> str | None:
    begin = tail.rfind(_BOX)
    if begin < 0:
        return None
    inside, depth = tail[begin + len(_BOX) :], 1
    for at, character in enumerate(inside):
        depth += (character == "{") - (character == "}")
        if depth == 0:
            return inside[:at].strip() or None
    return None
