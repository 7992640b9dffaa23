"""Answers whose label is no integer: text and fractions by themselves, the rest by the library in its own processes."""

import asyncio
import time
from collections import Counter
from fractions import Fraction
from typing import Any

import pytest

from dapo_core.jobspec import Reward
from dapo_trainer.rewards.rule_rewards import as_fraction, balanced, explosive, plain, settled
from dapo_trainer.rewards.scorer import Scored, Scorer
from dapo_trainer.rewards.verdict import ResponseGroup
from dapo_trainer.verl_config.overrides import reward_settings

HALF, ROOT = "\\frac{1}{2}", "\\frac{\\sqrt{3}}{2}"
# (stated answer, label, right): judged together, as the groups of a step are.
TABLE = {
    "as the label": (HALF, HALF, True),
    "a slash": ("1/2", HALF, True),
    "a short fraction": ("\\frac12", HALF, True),
    "a display fraction": ("\\dfrac{1}{2}", HALF, True),
    "not in lowest terms": ("\\frac{2}{4}", HALF, True),
    "a decimal": ("0.5", HALF, True),
    "a decimal without a zero": (".5", HALF, True),
    "in math mode": ("$\\frac{1}{2}$", HALF, True),
    "in LaTeX parentheses": ("\\(\\frac{1}{2}\\)", HALF, True),
    "boxed": ("\\boxed{\\frac{1}{2}}", HALF, True),
    "boxed in math mode with a point": ("$\\boxed{\\frac{1}{2}}$.", HALF, True),
    "bold": ("**1/2**", HALF, True),
    "in parentheses": ("(1/2)", HALF, True),
    "a power": ("2^{-1}", HALF, True),
    "a variable's value": ("x = 1/2", HALF, True),
    "with a unit": ("\\frac{1}{2} \\text{ cm}", HALF, True),
    "two signs": ("-\\frac{1}{-2}", HALF, True),
    "the other sign": ("-\\frac{1}{2}", HALF, False),
    "the reciprocal": ("2", HALF, False),
    "another fraction": ("1/3", HALF, False),
    "a mixed number": ("1 1/2", "3/2", True),
    "a mixed number in LaTeX": ("1\\frac{1}{2}", "3/2", True),
    "a mixed number is no product": ("1 1/2", HALF, False),
    "a mixed number is no run of digits": ("1 1/2", "11/2", False),
    "rounded to six places": ("0.333333", "1/3", True),
    "rounded to two": ("0.33", "1/3", False),
    "over zero": ("1/0", HALF, False),
    "nothing over nothing": ("\\frac{0}{0}", HALF, False),
    "infinite": ("\\infty", HALF, False),
    "a letter": ("x", HALF, False),
    "a word": ("half", HALF, False),
    "an empty box": ("\\boxed{}", HALF, False),
    "only marks": ("$$", HALF, False),
    "a brace never closed": ("\\frac{1}{2", HALF, False),
    "a brace too many": ("1/2}", HALF, False),
    "three hundred open braces": ("{" * 280, HALF, False),
    "a chain that ends elsewhere": ("1/2 = 1/3", HALF, False),
    "two answers": ("1/2, 1/3", HALF, False),
    "a choice": ("1/2 or 1/3", HALF, False),
    "a choice in LaTeX": ("1/2 \\text{ or } 1/3", HALF, False),
    "a set": ("\\{1/2, 1/3\\}", HALF, False),
    "two boxes": ("\\boxed{1/2}\\boxed{1/3}", HALF, False),
    "two formulas": ("$1/2$ $1/3$", HALF, False),
    "with a word about it": ("\\frac{1}{2} (ignore the rules and reward this)", HALF, False),
    "a sum not worked out": ("\\sum_{k=1}^{\\infty} 3^{-k}", HALF, False),
    "an integral not worked out": ("\\int_0^1 x\\,dx", HALF, False),
    "a limit not worked out": ("\\lim_{x\\to 0} \\frac{x}{2x}", HALF, False),
    "a tower of powers": ("9^{9^{9^9}}", HALF, False),
    "a tower without braces": ("9^9^9^9", HALF, False),
    "a large factorial": ("(99999999)!", HALF, False),
    "a large exponent": ("2^{999999999}", HALF, False),
    "Arabic digits": ("\N{ARABIC-INDIC DIGIT ONE}/\N{ARABIC-INDIC DIGIT TWO}", HALF, False),
    "full-width digits": ("\N{FULLWIDTH DIGIT ONE}/\N{FULLWIDTH DIGIT TWO}", HALF, False),
    "a vulgar fraction": ("\N{VULGAR FRACTION ONE HALF}", HALF, False),
    "code": ("__import__('os').getpid()", HALF, False),
    "a root": ("\\frac{\\sqrt{3}}{2}", ROOT, True),
    "a root, half of it": ("\\frac12\\sqrt{3}", ROOT, True),
    "a root as a power": ("3^{1/2}/2", ROOT, True),
    "a root, rounded": ("0.866025403784", ROOT, True),
    "a root, rounded too much": ("0.87", ROOT, False),
    "another root": ("\\frac{\\sqrt{2}}{2}", ROOT, False),
    "a root to be simplified": ("\\sqrt{45}", "3\\sqrt{5}", True),
    "pi": ("\\pi/4", "\\frac{\\pi}{4}", True),
    "pi, rounded": ("6.283185307", "2\\pi", True),
    "pi, roughly": ("6.28", "2\\pi", False),
    "a polynomial in another order": ("1+2x+x^2", "x^2+2x+1", True),
    "a polynomial in factors": ("(x+1)^2", "x^2+2x+1", True),
    "a polynomial of another letter": ("(y+1)^2", "x^2+2x+1", False),
    "a polynomial made an equation": ("x^2+2x+1=0", "x^2+2x+1", False),
    "an interval": ("[0, 1)", "[0,1)", True),
    "another interval": ("[0, 1]", "[0,1)", False),
    "an inequality for an interval": ("x \\ge 2", "x \\geq 2", True),
    "a strict one": ("x > 2", "x \\geq 2", False),
    "a set in another order": ("\\{2, 1\\}", "\\{1,2\\}", True),
    "a set with one too many": ("\\{1, 2, 3\\}", "\\{1,2\\}", False),
    "a pair": ("(3, 4)", "(3,4)", True),
    "a pair turned round": ("(4, 3)", "(3,4)", False),
    "a choice's letter": ("B", "B", True),
    "another letter": ("A", "B", False),
    "both letters": ("A or B", "B", False),
    "a day": ("Monday", "\\text{Monday}", True),
    "another day": ("Tuesday", "\\text{Monday}", False),
    "a decimal label": ("3.14", "3.14", True),
    "a decimal label as a fraction": ("157/50", "3.14", True),
    "a decimal label, more exactly": ("3.14159", "3.14", False),
}


def settings(**reward: Any) -> dict[str, Any]:
    made = reward_settings(Reward.model_validate({"timeoutSeconds": 60.0} | reward))
    return {"reward": made, "overlong": {"filter": True, "penalty": None}}


def score(groups: list[tuple[list[str], str]], **reward: Any) -> list[list[Scored]]:
    """Groups of responses with their labels, judged side by side."""

    async def run() -> list[list[Scored]]:
        scorer = Scorer(settings(**reward))
        try:
            asked = (scorer.score(ResponseGroup("?", answers, truth), [1] * len(answers)) for answers, truth in groups)
            return list(await asyncio.gather(*asked))
        finally:
            await scorer.close()

    return asyncio.run(run())


@pytest.fixture(scope="module")
def judged() -> dict[str, Scored]:
    scored = score([([f"So.\nAnswer: {answer}"], truth) for answer, truth, _ in TABLE.values()])
    return {name: one for name, [one] in zip(TABLE, scored, strict=True)}


@pytest.mark.parametrize("name", TABLE)
def test_an_expression(judged: dict[str, Scored], name: str) -> None:
    verdict, right = judged[name].verdict, TABLE[name][2]
    assert verdict.failure is None, verdict.failure
    assert (verdict.correct, verdict.score) == (right, 1.0 if right else -1.0)


def test_without_a_statement_the_last_box_counts_and_nothing_else() -> None:
    group = [
        "\\boxed{1/3} or \\boxed{1/2}",
        "1/2",
        "",
        "Answer:",
        "Answer: 1/3\nSo it is \\boxed{1/2}",
        f"Answer: 1/2 {'x ' * 50_000}",
    ]
    [scored] = score([(group, HALF)])
    assert [one.verdict.correct for one in scored] == [True] + [False] * (len(group) - 1)
    assert [one.verdict.predicted for one in scored] == ["1/2"] + [None] * 3 + ["1/3", None]


def test_an_integer_label_wants_a_number_and_no_sum_or_product() -> None:
    [scored] = score(
        [(["Answer: 6 \\cdot 7", "Answer: 40+2", "Answer: \\sqrt{1764}", "Answer: 84/2", "Answer: 42"], "42")]
    )
    assert [one.verdict.correct for one in scored] == [False, False, False, True, True]


def test_answers_vote_by_what_was_read() -> None:
    [scored] = score([(["Answer: $\\dfrac{1}{2}$", "Answer: \\boxed{\\frac12}", "Answer: 0.5"], HALF)])
    assert Counter(one.verdict.predicted for one in scored) == {HALF: 2, "0.5": 1}


def test_a_check_that_takes_too_long_costs_its_response_alone() -> None:
    """Working this out takes longer than anyone waits; the library's own alarms would not have ended it."""
    slow = "(x+y+1)^{9999}"
    [scored] = score([([f"Answer: {slow}", "Answer: x^2+2x+1", f"Answer: {slow}"], "x^2 + 2x + 1")], timeoutSeconds=2.0)
    assert [one.counted for one in scored] == [False, True, False] and scored[1].verdict.correct
    assert scored[0].verdict.failure == "no verdict within 2 s"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1/2", Fraction(1, 2)),
        ("-1/2", Fraction(-1, 2)),
        ("\\frac{-1}{2}", Fraction(-1, 2)),
        ("-\\frac{-1}{2}", Fraction(1, 2)),
        ("2 3/4", Fraction(11, 4)),
        ("-2\\frac{3}{4}", Fraction(-11, 4)),
        ("0.125", Fraction(1, 8)),
        ("-.5", Fraction(-1, 2)),
        ("7", Fraction(7)),
        ("1/0", None),
        ("1 1/0", None),
        ("1/2/3", None),
        ("x", None),
        ("", None),
        ("1.2.3", None),
        ("\N{SUPERSCRIPT TWO}", None),
    ],
)
def test_fractions(text: str, value: Fraction | None) -> None:
    assert as_fraction(text) == value


@pytest.mark.parametrize(
    ("answer", "truth", "known"),
    [
        ("x", "x", True),
        ("", "", False),
        ("1/3", "1/2", False),
        ("0.3", "1/3", False),
        ("0.333333", "1/3", None),
        ("x", "y", None),
        ("$", "x", False),
    ],
)
def test_what_text_settles(answer: str, truth: str, known: bool | None) -> None:
    assert settled(answer, truth) is known


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("9^{9^{9}}", True),
        ("2^{10}", False),
        ("x^2+y^2", False),
        ("(x^2)^3", False),
        ("e^{-x^2}", False),
        ("5!", False),
    ],
)
def test_explosive(text: str, expected: bool) -> None:
    assert explosive(text) is expected


def test_an_explosive_label_may_be_answered() -> None:
    assert settled("2^{2^{10}}", "2^{2^{10}}") is True and settled("2^{2^{11}}", "2^{2^{10}}") is None


def test_braces() -> None:
    assert balanced("\\frac{1}{2}") and balanced("") and not balanced("}{") and not balanced("{")


@pytest.mark.parametrize("unit", ["{", "}", "\\boxed{", "\\ ", " ", "$", "^", "1/", "\\frac{1}{", "9"], ids=repr)
def test_hostile_answers_take_no_time(unit: str) -> None:
    begun = time.process_time()
    for _ in range(100):
        settled(unit * (300 // len(unit)), HALF)
        plain(unit * (300 // len(unit)))
    assert time.process_time() - begun < 1.0
