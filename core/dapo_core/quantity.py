"""Kubernetes quantities (`500m`, `16Gi`) as numbers, and the unit in which memory is shown. Pure."""

import re
from fractions import Fraction
from typing import Final

GIB: Final = 1024**3

_MAX_CHARACTERS: Final = 32
# A number, and an exponent or a unit.
_FORM: Final = re.compile(
    r"(?P<number>[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:(?P<exponent>[eE][+-]?[0-9]{1,2})|(?P<unit>[A-Za-z]+))?"
)
_UNITS: Final = (
    {"": Fraction(1)}
    | {unit: Fraction(1, 1000**power) for power, unit in enumerate("mun", 1)}
    | {unit: Fraction(1000**power) for power, unit in enumerate("kMGTPE", 1)}
    | {f"{unit}i": Fraction(1024**power) for power, unit in enumerate("KMGTPE", 1)}
)


def amount(quantity: object) -> Fraction:
    """The number that a quantity stands for: of bytes, cores or devices. Raises ValueError when it is not one."""
    written = str(quantity)
    form = _FORM.fullmatch(written) if len(written) <= _MAX_CHARACTERS else None
    unit = (form["unit"] or "") if form is not None else None
    if form is None or unit not in _UNITS:
        raise ValueError(f"{written[:_MAX_CHARACTERS]} is not a valid quantity")
    return Fraction(form["number"] + (form["exponent"] or "")) * _UNITS[unit]
