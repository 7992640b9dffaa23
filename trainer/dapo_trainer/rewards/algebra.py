"""The `math-verify` library's judgement of an expression, run in the killable processes of `verifier`.

Its own time-outs are alarms, which do not interrupt long arithmetic in C: they are off, and the process is ended.
"""

import logging
from functools import lru_cache
from typing import Any

import sympy
from math_verify import parse, verify

from dapo_trainer.rewards.expressions import plain

# What asks for a value and is none: an answer that repeats the question would be equal to the truth.
_UNEVALUATED = (sympy.Sum, sympy.Product, sympy.Integral, sympy.Derivative, sympy.Limit)

logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that its alarms are off


def equal(response: str, truth: str, *, prompt: str) -> dict[str, Any]:
    """`response` is the stated answer alone, so that nothing else of a response can be taken for one."""
    answer, wanted = _read(response), _read(truth)
    right = bool(verify(wanted, answer, timeout_seconds=None))
    right = right and not (_asks(answer) and not _asks(wanted))
    return {"score": 1.0 if right else -1.0, "correct": right, "predicted": plain(response)}


@lru_cache(maxsize=512)  # a group's label is read once for all its answers: parsing is most of the work
def _read(text: str) -> list[Any]:
    found: list[Any] = parse(f"${plain(text)}$", parsing_timeout=None)
    return found


def _asks(parsed: list[Any]) -> bool:
    return any(isinstance(one, sympy.Basic) and one.has(*_UNEVALUATED) for one in parsed)
