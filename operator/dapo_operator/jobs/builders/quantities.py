"""Sums of pods' resource requests, as Kubernetes quantities. Pure."""

import math
from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Any

from dapo_core.quantity import amount

Amounts = dict[str, Fraction]


def text(number: Fraction) -> str:
    """The number as a quantity: whole, or in thousandths, rounded up."""
    return str(number.numerator) if number.denominator == 1 else f"{math.ceil(number * 1000)}m"


def total(amounts: Iterable[Amounts]) -> Amounts:
    """The sum, by resource."""
    whole: Amounts = {}
    for part in amounts:
        for name, number in part.items():
            whole[name] = whole.get(name, Fraction(0)) + number
    return whole


def requests(spec: Mapping[str, Any]) -> Amounts:
    """What the scheduler counts for a pod: the sum of its containers and sidecars, or the largest init container if
    that is more. Raises ValueError for an invalid quantity."""
    init = spec.get("initContainers") or []
    sidecars = [container for container in init if container.get("restartPolicy") == "Always"]
    counted = total(_container(container) for container in (*spec["containers"], *sidecars))
    for alone in (_container(container) for container in init if container not in sidecars):
        counted |= {name: max(number, counted.get(name, Fraction(0))) for name, number in alone.items()}
    return counted


def _container(container: Mapping[str, Any]) -> Amounts:
    """Requests by resource; a limit without a request counts as one."""
    resources = container.get("resources")
    limits, asked = (_mapping(_mapping(resources).get(kind)) for kind in ("limits", "requests"))
    return {name: amount(quantity) for name, quantity in {**limits, **asked}.items()}


def _mapping(value: object) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ValueError(f"{value} is not a mapping")
    return value
