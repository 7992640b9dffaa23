"""Rule checks of a stated answer: pure text, in time linear in a bounded tail of the response."""

import re

from dapo_trainer.rewards.verdict import Verdict, right_or_wrong

# The published rule reads the end of a response only; it also bounds the time a hostile response can take.
TAIL_CHARACTERS = 300
_STATEMENT = re.compile(r"answer\s*:", re.IGNORECASE)
# Groups of three digits may be set apart; a comma or space anywhere else separates two answers.
_INTEGER = re.compile(r"([+-]?)(\d+|[1-9]\d{0,2}(?:[, ]\d{3})+)(?:\.0*)?", re.ASCII)
_BOXED = re.compile(r"\\?boxed\{(.*)\}")
_DRESSING = str.maketrans({"$": None, "*": None, "\N{MINUS SIGN}": "-", "\N{NO-BREAK SPACE}": " "})
_LATEX = {"{,}": ",", "\\,": ",", "\\!": "", "\\(": "", "\\)": "", "\\[": "", "\\]": "", "\\ ": " "}


def stated_answer(response: str) -> str | None:
    """What follows the last `Answer:` of the response's tail on its line, as written; None when nothing is stated."""
    tail = response[-TAIL_CHARACTERS:]
    for found in reversed(list(_STATEMENT.finditer(tail))):
        rest = tail[found.end() :].strip()
        if rest:
            return _STATEMENT.split(rest.splitlines()[0])[0].strip()
    return None


def as_integer(text: str) -> int | None:
    """`text` as an integer, whatever its dressing (`$`, `boxed{}`, thousands separators, a final point), or None."""
    plain = text[: TAIL_CHARACTERS + 1].translate(_DRESSING)
    for written, meant in _LATEX.items():
        plain = plain.replace(written, meant)
    plain = plain.strip()
    if boxed := _BOXED.fullmatch(plain.rstrip(". ")):
        plain = boxed[1].strip()
    found = _INTEGER.fullmatch(plain.replace("- ", "-")) if len(plain) <= TAIL_CHARACTERS else None
    return int(found[1] + re.sub("[, ]", "", found[2])) if found else None


def exact(response: str, truth: str) -> Verdict:
    """Right when the stated answer, or the whole response where none is stated, is `truth` to the letter."""
    stated = stated_answer(response)
    answer = response.strip() if stated is None else stated
    return right_or_wrong(answer == truth.strip(), answer[:TAIL_CHARACTERS])


def math(response: str, truth: str) -> Verdict:
    """Right when the stated answer is the integer `truth` (the paper's data has integer answers, section 3.5).

    Where the truth is no integer, `scorer` asks `expressions` and `algebra` instead.
    """
    stated = stated_answer(response)
    answer = None if stated is None else as_integer(stated)
    return right_or_wrong(answer is not None and answer == as_integer(truth), None if answer is None else str(answer))


RULES = {"exact": exact, "math": math}
