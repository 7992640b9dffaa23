"""Closed forms: what is read, what is left to the library, and that the two never disagree."""

import math
import time
from random import Random

import pytest

from dapo_trainer.rewards.algebra import equal
from dapo_trainer.rewards.closed_forms import compared, form


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("7", 7),
        ("-.5", -0.5),
        ("\\pi", math.pi),
        ("2\\pi", 2 * math.pi),
        ("\\frac{\\pi}{3}", math.pi / 3),
        ("\\frac{\\sqrt{3}}{2}", math.sqrt(3) / 2),
        ("\\sqrt{2}\\frac{1}{2}", math.sqrt(2) / 2),
        ("\\sqrt[3]{2}", 2 ** (1 / 3)),
        ("\\sqrt2", math.sqrt(2)),
        ("2\\sqrt{3}+\\sqrt{1+\\sqrt{2}}", 2 * math.sqrt(3) + math.sqrt(1 + math.sqrt(2))),
        ("-2^2", -4),
        ("(-2)^2", 4),
        ("2^{-1}", 0.5),
        ("2^{\\frac{1}{2}}", math.sqrt(2)),
        ("2\\cdot 3", 6),
        ("2\\times\\pi*3", 6 * math.pi),
        ("1/2+\\pi/3", 0.5 + math.pi / 3),
        ("1-2-3", -4),
    ],
)
def test_what_is_read(text: str, value: float) -> None:
    found = form(text)
    assert found is not None and len(found.values) == 1 and float(found.values[0]) == pytest.approx(value, rel=1e-14)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="nothing"),
        pytest.param("x", id="a letter"),
        pytest.param("(xy)", id="letters"),
        pytest.param("2m", id="a unit, says the library"),
        pytest.param("e^2", id="Euler's number"),
        pytest.param("2i+1", id="the imaginary unit"),
        pytest.param("x(2)", id="a function"),
        pytest.param("x2", id="a number after a letter"),
        pytest.param("1/2x", id="divided by what letter"),
        pytest.param("\\sqrt{x}", id="a root that is not everywhere"),
        pytest.param("(x+1", id="a parenthesis never closed"),
        pytest.param("\\pir", id="another command"),
        pytest.param("1,000", id="a comma"),
        pytest.param("1 1/2", id="a mixed number"),
        pytest.param("1\\frac{1}{2}", id="a mixed number in LaTeX"),
        pytest.param("2(11)", id="thirteen, says the library"),
        pytest.param("1/2\\pi", id="divided by what"),
        pytest.param("1/2/3", id="divided twice"),
        pytest.param("2^34", id="a power of how many digits"),
        pytest.param("2^{2}^{3}", id="a power of a power"),
        pytest.param("\\sqrt23", id="a root of how many digits"),
        pytest.param("\\frac12", id="a fraction without braces"),
        pytest.param("--1", id="two signs"),
        pytest.param("2\\cdot-3", id="a sign in the middle"),
        pytest.param("50\\%", id="percent"),
        pytest.param("5!", id="a factorial"),
        pytest.param("\\sqrt{-1}", id="imaginary"),
        pytest.param("(-8)^{1/3}", id="a power with three values"),
        pytest.param("1/0", id="over zero"),
        pytest.param("\\frac{1}{\\sqrt{2}-\\sqrt{2}}", id="over zero, worked out"),
        pytest.param("0^{-1}", id="zero to a negative power"),
        pytest.param("10^{64}", id="huge"),
        pytest.param("10^{-64}", id="tiny"),
        pytest.param("2^{65}", id="a high power"),
        pytest.param("10^{12}+1-10^{12}\\cdot 10", id="huge on the way"),
        pytest.param("\\frac{1}{2", id="a brace never closed"),
        pytest.param("+".join(["\\sqrt[3]{2}"] * 7), id="too many roots"),
        pytest.param("1+", id="half a sum"),
        pytest.param("(" * 150 + "1" + ")" * 150, id="too deep"),
    ],
)
def test_what_is_not(text: str) -> None:
    assert form(text) is None


PAIRS = [
    ("\\sqrt{8}", "2\\sqrt{2}", True),
    ("\\frac{1}{\\sqrt{2}}", "\\frac{\\sqrt{2}}{2}", True),
    ("\\sqrt{3+2\\sqrt{2}}", "1+\\sqrt{2}", True),
    ("\\frac{2\\pi}{6}", "\\frac{\\pi}{3}", True),
    ("2^{\\frac{3}{2}}", "\\sqrt{8}", True),
    ("\\sqrt[3]{16}", "2\\sqrt[3]{2}", True),
    ("(1+\\sqrt{2})^2", "3+2\\sqrt{2}", True),
    ("\\frac{\\sqrt{6}-\\sqrt{2}}{4}", "\\frac{\\sqrt{2}}{4\\cdot(2+\\sqrt{3})}\\cdot(1+\\sqrt{3})", True),
    ("\\sqrt{8}", "2\\sqrt{3}", False),
    ("-\\sqrt{2}", "\\sqrt{2}", False),
    ("\\frac{\\pi}{4}", "\\frac{\\pi}{3}", False),
    ("3.14", "\\pi", False),
    ("1.4142", "\\sqrt{2}", False),
    ("0.3", "1/3", False),
    ("\\pi^2", "10", False),
    ("\\sqrt{2}+\\sqrt{3}", "\\sqrt{5}", False),
    ("x^2+x", "x(x+1)", True),
    ("(x+1)(x-1)", "x^2-1", True),
    ("\\frac{x^2-1}{x-1}", "x+1", True),
    ("\\frac{n(n+1)}{2}", "\\frac{n^2}{2}+\\frac{n}{2}", True),
    ("2xy", "yx+xy", True),
    ("2^{n+1}", "2\\cdot 2^n", True),
    ("x^2+1", "(x+1)^2", False),
    ("2x", "2y", False),
    ("\\sqrt{x^2}", "-\\sqrt{x^2}", False),
    ("\\sqrt{x^2}+1", "x+1", False),
    ("\\sqrt{x^2y^2}+1", "xy+1", False),
    ("3", "2x+1", False),
    ("0.333333x", "\\frac{x}{3}", None),
    ("xy", "yx", None),
    ("\\frac{355}{113}", "\\pi", None),
    ("1.414214", "\\sqrt{2}", None),
    ("0", "\\sqrt{2}-\\sqrt{2}", None),
    ("x", "\\sqrt{2}", None),
    ("10^{-8}", "10^{-9}", None),
]


@pytest.mark.parametrize(("answer", "truth", "same"), PAIRS)
def test_compared(answer: str, truth: str, same: bool | None) -> None:
    assert compared(answer, truth) is same is compared(truth, answer)


@pytest.mark.parametrize(("answer", "truth", "same"), [pair for pair in PAIRS if pair[2] is not None])
def test_the_library_says_so_too(answer: str, truth: str, same: bool) -> None:
    assert equal(answer, truth, prompt="")["correct"] is same


class Writer:
    """Forms at random, and the same ones written otherwise."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)

    def pair(self) -> tuple[str, str]:
        one = self._sum(2)
        if self._random.random() < 0.5:
            return one, self._sum(2)
        again = ["\\frac{2\\cdot(%s)}{2}", "(%s)\\cdot 3/3", "%s+1-1", "\\frac{\\sqrt{2}\\cdot(%s)}{\\sqrt{2}}"]
        return one, self._random.choice(again) % one

    def _sum(self, depth: int) -> str:
        terms = [self._product(depth) for _ in range(self._random.choice([1, 1, 2, 3]))]
        return self._random.choice(["", "", "-"]) + self._random.choice("+-").join(terms)

    def _product(self, depth: int) -> str:
        signs = ["*", "\\cdot ", "\\times "]
        return self._random.choice(signs).join(self._factor(depth) for _ in range(self._random.choice([1, 1, 2])))

    def _factor(self, depth: int) -> str:
        kind = self._random.randrange(9 if depth else 4)
        number = str(self._random.randint(1, 40))
        if kind < 5:
            plain = [number, number, "\\pi", self._random.choice("xxyn"), f"\\sqrt{{{number}}}"]
            return plain[kind]
        inside = self._sum(depth - 1)
        written = ["(%s)", "\\frac{%s}{%%s}", "\\sqrt{%s}", "(%s)^2"][kind - 5] % inside
        return written % number if "%s" in written else written


@pytest.mark.parametrize("seed", range(4))
def test_the_library_says_the_same_of_generated_pairs(seed: int) -> None:
    writer, told = Writer(seed), 0
    while told < 15:
        one, other = writer.pair()
        same = compared(one, other)
        if same is not None and one != other:
            assert equal(other, one, prompt="")["correct"] is same, (one, other)
            told += 1


@pytest.mark.parametrize("unit", ["\\sqrt{", "\\frac{1}{", "(", "9^9", "1+", "\\pi", "9"], ids=repr)
def test_hostile_texts_take_no_time(unit: str) -> None:
    begun = time.process_time()
    for size in range(100):
        form(unit * (300 // len(unit) - size // 10) + "1")
    assert time.process_time() - begun < 1.0
