"""The `math-verify` library's comparison of two expressions, run in the processes of `verifier`, which can be killed.

The library's own timeouts are alarms, which do not interrupt long arithmetic in C: they are off.
"""

import logging
from functools import lru_cache
from typing import Any

import sympy
from math_verify import parse, verify

from dapo_trainer.rewards.rule_rewards import plain

# Expressions that are not evaluated: an answer that repeats the question would equal the label.
_UNEVALUATED = (sympy.Sum, sympy.Product, sympy.Integral, sympy.Derivative, sympy.Limit)

logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that its timeouts are off


def equal(response: str, truth: str, *, prompt: str) -> dict[str, Any]:
    """`response` is the stated answer alone, so that no other part of a response can be taken for it."""
    answer, wanted = _read(response), _read(truth)
    right = bool(verify(wanted, answer, timeout_seconds=None))
    right = right and not (_unevaluated(answer) and not _unevaluated(wanted))
    return {"score": 1.0 if right else -1.0, "correct": right, "predicted": plain(response)}


@lru_cache(maxsize=512)  # a group's label is parsed once for all its answers: parsing is most of the work
def _read(text: str) -> list[Any]:
    expressions: list[Any] = parse(f"${plain(text)}$", parsing_timeout=None)
    return expressions


def _unevaluated(parsed: list[Any]) -> bool:
    return any(isinstance(one, sympy.Basic) and one.has(*_UNEVALUATED) for one in parsed)
