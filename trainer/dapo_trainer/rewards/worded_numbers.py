r"""A number in the dress that answers come in: `x = 42`, `42\text{ cm}^2`, `$42^\circ$`, `The answer is \$42.`. Pure.

All of the text has to be understood. What is taken away leaves a mark, so that digits on its two sides are not joined:
`4 km 2`, `4*2` and `$4$ $2$` are no 42. A word that is in none of the lists is not understood: an answer with it is
wrong rather than guessed at.
"""

import re
from fractions import Fraction
from functools import lru_cache
from typing import Final

from dapo_trainer.rewards.closed_forms import form
from dapo_trainer.rewards.statement import TAIL_CHARACTERS

LENGTHS: Final = frozenset(
    "mm cm km in inch inches ft foot feet yd yard yards mile miles meter meters metre metres centimeter centimeters "
    "centimetre centimetres millimeter millimeters millimetre millimetres kilometer kilometers kilometre kilometres "
    "unit units".split()
)
"""Units that may have a power: cm^2."""

_UNITS: Final = frozenset(
    "mg g gm gms gram grams kg kilogram kilograms lb lbs pound pounds oz ounce ounces ton tons ml liter liters litre "
    "litres gallon gallons mph kph per sec secs second seconds min mins minute minutes hr hrs hour hours day days week "
    "weeks month months year years old deg degree degrees celsius fahrenheit kelvin rad radian radians dollar dollars "
    "cents euro euros usd us eur rupees point points sue volts watts joules newtons hertz".split()
)

_THINGS: Final = frozenset(
    "way ways integer integers digit digits meal meals edge edges student students child children ticket tickets "
    "childrentickets person people man men woman women boy boys girl girls adult adults player players team teams "
    "game games round rounds match matches card cards coin coins ball balls marble marbles apple apples orange oranges "
    "book books page pages car cars house houses animal animals tile tiles block blocks stone stones vertex vertices "
    "face faces side sides diagonal diagonals triangle triangles rectangle rectangles circle circles line lines "
    "segment segments region regions path paths step steps move moves arrangement arrangements permutation "
    "permutations combination combinations pair pairs triple triples tuple tuples quadruple quadruples sequence "
    "sequences subset subsets set sets element elements term terms prime primes divisor divisors solution solutions "
    "value values number numbers possibility possibilities outcome outcomes choice choices case cases color colors "
    "colour colours coloring colorings letter letters word words function functions polynomial polynomials zeros "
    "zeroes pieces piece items item objects object members member votes vote questions question "
    "problems problem".split()
)

_SENTENCE: Final = frozenset(
    "the this that these it its there here is are was be will equals equal to of for in so thus therefore hence "
    "then finally we you get gets have has had find found obtain obtained conclude see must our my final correct "
    "required desired requested answer answers result results total sum product difference count remainder quotient "
    "area volume perimeter circumference length width height radius diameter distance time speed cost price age angle "
    "measure probability maximum minimum maximal minimal largest smallest greatest least possible positive ordered "
    "distinct different unique such whole given which as".split()
)

AROUND: Final = LENGTHS | _UNITS | _THINGS | _SENTENCE
"""Before a number or after it."""

BEFORE: Final = frozenset(("a", "an"))
"""Only before a number: `42 a` is a product."""

AFTER: Final = frozenset("square sq cubic multiples th st nd rd".split())
"""Only after a number: `square 42` is another number than 42."""

DENIALS: Final = frozenset(
    "not no non never nor or either neither if unless except without wrong false incorrect isn isnt doesn doesnt "
    "cannot cant than but instead else suppose assume twice thrice double triple half third quarter minus negative "
    "opposite inverse reciprocal approximately about roughly almost nearly between".split()
)
"""A name before an equals sign has none of these."""


_GAP: Final = "\x1f"
_LOOSE: Final = rf"[\s{_GAP}]*"
MINUSES: Final = "\N{MINUS SIGN}\N{EN DASH}\N{SMALL HYPHEN-MINUS}\N{HEAVY MINUS SIGN}"
SPACES: Final = "\N{NO-BREAK SPACE}\N{NARROW NO-BREAK SPACE}\N{THIN SPACE}"
_CHARACTERS: Final = str.maketrans(
    dict.fromkeys(MINUSES, "-")
    | dict.fromkeys(SPACES, " ")
    | dict.fromkeys('"`\N{LEFT DOUBLE QUOTATION MARK}\N{RIGHT DOUBLE QUOTATION MARK}', _GAP)
    | dict.fromkeys("\N{EURO SIGN}\N{POUND SIGN}\N{YEN SIGN}\N{INDIAN RUPEE SIGN}", _GAP)
    | {"\N{SUPERSCRIPT TWO}": "^2", "\N{SUPERSCRIPT THREE}": "^3", "\N{DEGREE SIGN}": "^\\circ"}
)
_SEPARATOR = re.compile(r"(?<=\d)(?:\{,\}|,?\\[,!])(?=\d{3}(?!\d))", re.ASCII)
_FRACTION = re.compile(r"(?<![\d^_])\\[dt]?frac(?:\{(-?\d+)\}\{(\d+)\}|(\d)(\d))", re.ASCII)
_MARK = re.compile(
    r"\\?\$|\\[()\[\]]|\*\*|__|(?<!\S)[*_]|[*_](?!\S)|\\(?:left|right|displaystyle|quad|qquad)(?![a-zA-Z])"
)
_SPACING = re.compile(r"\\[,;:! ]|(?<=[\w}])~(?=[\\A-Za-z])")
_WRAPPER = re.compile(
    r"\\?(?:boxed|fbox|mbox|text(?:bf|rm|it|sf)?|math(?:rm|bf|it|sf)|bm|boldsymbol|emph|underline|overline|operatorname)"
    r" ?\{([^{}]*)\}"
)
# A letter is a unit inside \text{} alone: elsewhere it is a variable.
_LETTER_UNIT = re.compile(r"\\(?:text(?:rm)?|mathrm|mbox) ?\{\s*[mslghLKNJWV]\s*\}(?:\^\{?[23]\}?)?")
_DEGREES = re.compile(rf"(?:\^{_LOOSE}\{{?\s*\\circ\s*\}}?|\\degree)(?:{_LOOSE}[CF](?![A-Za-z]))?")
_ORDINAL = re.compile(rf"(?<=\d)\^\{{?{_LOOSE}(?:th|st|nd|rd){_LOOSE}\}}?", re.ASCII)
_WORD = re.compile(rf"(?<![A-Za-z\\])([A-Za-z]+)({_GAP}?\^\{{?[23]\}}?)?[,:]?(?![A-Za-z0-9^])")
_RUN = re.compile(rf"[\s{_GAP}]+")
_EMPTY = re.compile(rf"\({_LOOSE}\)")
_DIGITS: Final = r"(?:[1-9]\d{0,2}(?:,\d{3})+|[1-9]\d{0,2}(?: \d{3})+|\d+)"
_NUMBER = re.compile(
    rf"{_LOOSE}(\()?{_LOOSE}([-+]?){_LOOSE}(?:({_DIGITS})?(\.\d*)?|(\d+) ?/ ?(\d+))"
    rf"{_LOOSE}(?(1)\)){_LOOSE}[.,;:]?{_LOOSE}",
    re.ASCII,
)
_RELATION = re.compile(
    "[<>!~\N{NOT EQUAL TO}\N{LESS-THAN OR EQUAL TO}\N{GREATER-THAN OR EQUAL TO}\N{ALMOST EQUAL TO}]"
    r"|\\(?:n?[lg]eq?|neq?|[lg]t|not|approx|sim|simeq|cong|equiv|pm|mp|implies|iff|[lLrR](?:ef|igh)tarrow|to|lor|vee)"
    r"(?![a-zA-Z])"
)
_INSIDE = re.compile(r"\([^()]*\)|\{[^{}]*\}|\[[^\[\]]*\]")
_NAME = re.compile(rf"{_LOOSE}[A-Za-z]{_LOOSE}")
_LETTERS = re.compile(r"(?<![A-Za-z\\])[A-Za-z]+")
DEEPEST: Final = 8


@lru_cache(maxsize=4096)  # the responses of a group repeat one another
def worded_number(answer: str) -> Fraction | None:
    """The one number that `answer` states, or None where it states another thing, or is not understood in full."""
    if len(answer) > TAIL_CHARACTERS:
        return None
    *names, value = _undressed(answer).split("=")
    if len(names) == 1 and _NAME.fullmatch(value):
        names, value = [value], names[0]  # 42 = x
    number = _number(_without_words(value))
    if number is None or not all(_is_name(name, number) for name in names):
        return None
    return number


def _undressed(answer: str) -> str:
    """Without math mode, bold, boxes, spacing commands, currency, degree signs; fractions with a slash."""
    text = _SEPARATOR.sub(",", answer.translate(_CHARACTERS))
    text = _FRACTION.sub(lambda found: f"{found[1] or found[3]}/{found[2] or found[4]}", text)
    text = _LETTER_UNIT.sub(_GAP, _SPACING.sub(" ", _MARK.sub(_GAP, text)))
    for _ in range(DEEPEST):
        text, found = _WRAPPER.subn(rf"{_GAP}\1{_GAP}", text)
        if not found:
            break
    return _ORDINAL.sub(_GAP, _DEGREES.sub(_GAP, _together(text)))


def _without_words(value: str) -> str:
    first = next((at for at, character in enumerate(value) if character.isdigit()), len(value))

    def taken(found: re.Match[str]) -> str:
        word = found[1].lower()
        known = word in AROUND or word in (AFTER if found.start() > first else BEFORE)
        return _GAP if known and (not found[2] or word in LENGTHS) else found[0]

    return _together(_EMPTY.sub(_GAP, _WORD.sub(taken, value)))


def _together(text: str) -> str:
    """Without runs of spaces and marks, which a pattern could try to divide in very many ways."""
    return _RUN.sub(lambda run: _GAP if _GAP in run[0] else " ", text)


def _number(text: str) -> Fraction | None:
    found = _NUMBER.fullmatch(text)
    if found is None:
        return None
    sign, whole, decimals, above, below = found.groups()[1:]
    if below:
        size = Fraction(int(above), int(below)) if int(below) else None
    elif whole or (decimals or ".") != ".":
        size = Fraction((whole or "0").replace(",", "").replace(" ", "") + (decimals or ""))
    else:
        size = None
    return -size if size is not None and sign == "-" else size


def _is_name(text: str, number: Fraction) -> bool:
    """Whether what stands before an equals sign may be called `number`: no list, no denial, no other number."""
    if _RELATION.search(text) or any(word.lower() in DENIALS for word in _LETTERS.findall(text)):
        return False
    bare = _without_words(text)
    outside = _INSIDE.sub("", bare)
    if "," in outside or ";" in outside:
        return False
    value = form(bare.replace(_GAP, "").replace(" ", ""))
    if value is None or len(value.values) > 1:  # with letters: whatever they are
        return True
    return abs(Fraction(value.values[0]) - number) < Fraction(1, 10**9)
