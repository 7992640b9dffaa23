"""Sums of what pods ask for, in Kubernetes' quantities. Pure."""

import math
import re
from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Any, Final

Amounts = dict[str, Fraction]

_POWERS: Final = "kMGTPE"
_UNITS: Final[Mapping[str, Fraction]] = {
    "": Fraction(1),
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 1000),
    **{unit: Fraction(1000 ** (power + 1)) for power, unit in enumerate(_POWERS)},
    **{f"{unit.upper()}i": Fraction(1024 ** (power + 1)) for power, unit in enumerate(_POWERS)},
}
_FORM: Final = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE]([+-]?[0-9]{1,2})|([a-zA-Z]*))")


def amount(quantity: object) -> Fraction:
    """The number that a quantity stands for. Raises ValueError."""
    found = _FORM.fullmatch(str(quantity))
    if found is None or (found[3] or "") not in _UNITS:
        raise ValueError(f"{quantity} is no quantity")
    return Fraction(found[1]) * Fraction(10) ** int(found[2] or 0) * _UNITS[found[3] or ""]


def text(number: Fraction) -> str:
    """As a quantity: whole, or in thousandths, rounded up."""
    return str(number.numerator) if number.denominator == 1 else f"{math.ceil(number * 1000)}m"


def total(amounts: Iterable[Amounts]) -> Amounts:
    """The sum, by resource."""
    found: Amounts = {}
    for each in amounts:
        for name, number in each.items():
            found[name] = found.get(name, Fraction(0)) + number
    return found


def requests(spec: Mapping[str, Any]) -> Amounts:
    """What the scheduler counts for a pod: its containers together (init containers that keep running are among them),
    or the largest of those that run before them. Raises ValueError."""
    before = spec.get("initContainers") or []
    beside = [each for each in before if each.get("restartPolicy") == "Always"]
    found = total(_container(each) for each in (*spec["containers"], *beside))
    for alone in (_container(each) for each in before if each not in beside):
        found |= {name: max(number, found.get(name, Fraction(0))) for name, number in alone.items()}
    return found


def _container(container: Mapping[str, Any]) -> Amounts:
    """A limit without a request is one."""
    resources = container.get("resources")
    limits, asked = (_mapping(_mapping(resources).get(kind)) for kind in ("limits", "requests"))
    return {name: amount(quantity) for name, quantity in {**limits, **asked}.items()}


def _mapping(value: object) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ValueError(f"{value} is no mapping")
    return value
