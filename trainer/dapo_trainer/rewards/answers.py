"""Rule checks of a stated answer: pure text, in time linear in a bounded tail of the response."""

import re

from dapo_trainer.rewards.verdict import Verdict, right_or_wrong

# The published rule reads the end of a response only; it also bounds the time a hostile response can take.
TAIL_CHARACTERS = 300
_STATED = re.compile(r"answer\s*:\s*([^\n]+)", re.IGNORECASE)
_INTEGER = re.compile(r"[+-]?\d+(?:\.0*)?$")
_DRESSING = str.maketrans({"$": None, ",": None, " ": None, "\\": None, "*": None})


def stated_answer(response: str) -> str | None:
    """The last `Answer: ...` of the response's tail, as written; None when nothing is stated."""
    found = _STATED.findall(response[-TAIL_CHARACTERS:])
    return found[-1].strip() if found else None


def as_integer(text: str) -> int | None:
    """`text` as an integer, tolerant of thousands separators, `$`, `boxed{}` and a final point; None if it is none."""
    plain = text.translate(_DRESSING).rstrip(".")
    if plain.startswith("boxed{") and plain.endswith("}"):
        plain = plain[len("boxed{") : -1]
    return int(plain.split(".")[0]) if _INTEGER.match(plain) and plain.isascii() else None


def exact(response: str, truth: str) -> Verdict:
    """Right when the stated answer, or the whole response where none is stated, is `truth` to the letter."""
    stated = stated_answer(response)
    answer = response.strip() if stated is None else stated
    return right_or_wrong(answer == truth.strip(), answer[:TAIL_CHARACTERS])


def math(response: str, truth: str) -> Verdict:
    """Right when the stated answer is the integer `truth` (the paper's data has integer answers, section 3.5)."""
    stated = stated_answer(response)
    answer = None if stated is None else as_integer(stated)
    return right_or_wrong(answer is not None and answer == as_integer(truth), None if answer is None else str(answer))


RULES = {"exact": exact, "math": math}
