"""The words that may stand around a number without changing it, and those that deny what follows. English, lower case.

A word that is in neither list is not understood: an answer with it is wrong rather than guessed at.
"""

from typing import Final

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
