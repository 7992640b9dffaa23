"""Kubernetes quantities as numbers of bytes. Pure."""

from typing import Final

_UNITS: Final = {
    "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15
}  # fmt: skip


def quantity(text: str) -> float:
    """A Kubernetes quantity in bytes."""
    unit = next((unit for unit in _UNITS if text.endswith(unit)), "")
    return float(text.removesuffix(unit)) * _UNITS.get(unit, 1)
