"""How much memory a value takes, roughly and quickly: enough to keep a cache within its limit."""

from collections.abc import Mapping, Sequence, Set
from dataclasses import fields, is_dataclass
from typing import Final

OBJECT: Final = 56  # bytes of a small object, and of its place in what holds it
SAMPLED: Final = 16


def size_of(value: object) -> int:
    """Bytes of a value made of dataclasses, containers, texts and numbers. Of a long sequence some members stand for
    all: rows of one query are alike."""
    if isinstance(value, (str, bytes)):
        return OBJECT + len(value)
    if isinstance(value, Mapping):
        return OBJECT + sum(size_of(key) + size_of(each) for key, each in value.items())
    if isinstance(value, (Sequence, Set)):
        return OBJECT + _of_members(list(value))
    if is_dataclass(value):
        return OBJECT + sum(size_of(getattr(value, field.name)) for field in fields(value))
    return OBJECT


def _of_members(members: list[object]) -> int:
    some = members[:: max(1, len(members) // SAMPLED)]
    return sum(map(size_of, some)) * len(members) // len(some) if some else 0
