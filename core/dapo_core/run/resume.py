"""From which checkpoint a run goes on. Pure: the trainer asks of manifests, the operator of database rows."""

from collections.abc import Iterable
from typing import Protocol, TypeVar


class Candidate(Protocol):
    """What both a database row and a manifest say of a checkpoint."""

    @property
    def step(self) -> int: ...

    @property
    def attempt(self) -> int: ...

    @property
    def state(self) -> str: ...


C = TypeVar("C", bound=Candidate)


def committed(checkpoints: Iterable[C]) -> list[C]:
    """Those that may be resumed from, newest first: by step, and of one step the highest attempt's."""
    whole = [checkpoint for checkpoint in checkpoints if checkpoint.state == "committed"]
    return sorted(whole, key=lambda checkpoint: (checkpoint.step, checkpoint.attempt), reverse=True)


def pick(checkpoints: Iterable[C]) -> C | None:
    """The newest committed checkpoint, or None: start from the model."""
    return next(iter(committed(checkpoints)), None)
