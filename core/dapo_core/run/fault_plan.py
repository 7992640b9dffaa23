"""Faults that are to hit a job, planned before any of them does: the same seed, rate, minutes, kinds and roles give the
same plan on every machine. Pure.

The times of a plan are those of a Poisson process of which the number of events is known: independent and uniform.
Kinds take turns, in an order that is reshuffled for each turn, and so do the roles that a kind can hit: a short plan
has all of them.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from random import Random
from typing import Final, TypeVar

from dapo_core.errors import Problem, SpecError
from dapo_core.naming import ROLES, Role

Option = TypeVar("Option")

MAX_FAULTS: Final = 1000
MAX_MINUTES: Final = 7 * 24 * 60


class FaultKind(StrEnum):
    """What is done to a pod, or to an engine or rank of a local run."""

    KILL = "kill"
    DRAIN = "drain"
    WEDGE = "wedge"
    PARTITION = "partition"
    SLOW = "slow"
    SCALE = "scale"
    STORE = "store"


@dataclass(frozen=True)
class Effect:
    """What a kind of fault does, the roles that it can hit (none: the job as a whole) and for how many seconds; 0 for
    what is done at once. `stopped`: the share of that time for which processes are stopped."""

    meaning: str
    roles: tuple[Role, ...]
    seconds: float = 0.0
    stopped: float = 0.0


EFFECTS: Final[Mapping[FaultKind, Effect]] = {
    FaultKind.KILL: Effect("ends at once, without a grace period", ROLES),
    FaultKind.DRAIN: Effect("is evicted, as by kubectl drain", ROLES),
    # Longer than the 90 s after which an engine is taken for wedged.
    FaultKind.WEDGE: Effect("its engine is stopped, but not ended", ("rollout", "trainer"), 150.0, stopped=1.0),
    FaultKind.PARTITION: Effect("all its processes are stopped, so that it is silent", ROLES, 60.0, stopped=1.0),
    FaultKind.SLOW: Effect("its processes are stopped half of the time", ROLES, 60.0, stopped=0.5),
    FaultKind.SCALE: Effect("the job has one rollout less, and then as many as before", ("rollout",), 60.0),
    FaultKind.STORE: Effect("the job's pods open no connection to the stores", (), 60.0),
}


@dataclass(frozen=True)
class PlannedFault:
    """One fault, `at` seconds after the begin. `role` is None where it hits the job as a whole. Which of the pods that
    the role then has is chosen by `draw`, from 0 to 1."""

    at: float
    kind: FaultKind
    role: Role | None
    draw: float

    def choose(self, names: Sequence[str]) -> str | None:
        """One of these; None of none. Their order does not matter."""
        return sorted(names)[min(len(names) - 1, int(self.draw * len(names)))] if names else None


def fault_plan(
    seed: int, rate: float, minutes: float, kinds: Iterable[str], roles: Iterable[str]
) -> tuple[PlannedFault, ...]:
    """`rate` faults an hour for so many minutes, rounded to whole ones, by time. Raises SpecError, which names options
    of `dapo chaos`."""
    kinds, roles = list(dict.fromkeys(kinds)), list(dict.fromkeys(roles))
    if problems := _problems(seed, rate, minutes, kinds, roles):
        raise SpecError(problems)
    random = Random(seed)
    targets = {kind: _targets(kind, roles) for kind in FaultKind if kind in kinds}
    times = sorted(random.random() * minutes * 60 for _ in range(_count(rate, minutes)))
    turns, turns_of = _turns(random, list(targets)), {kind: _turns(random, hit) for kind, hit in targets.items()}
    return tuple(PlannedFault(at, kind := next(turns), next(turns_of[kind]), random.random()) for at in times)


def _turns(random: Random, options: Sequence[Option]) -> Iterator[Option]:
    """Each of them in turn, forever."""
    while True:
        # Only `random()` gives the same numbers in every version of Python.
        yield from (option for _, option in sorted(((random.random(), option) for option in options), key=_first))


def _first(pair: tuple[float, object]) -> float:
    return pair[0]


def _targets(kind: FaultKind, roles: Sequence[str]) -> list[Role | None]:
    known = EFFECTS[kind].roles
    return [role for role in known if role in roles] if known else [None]


def _count(rate: float, minutes: float) -> int:
    return math.floor(rate * minutes / 60 + 0.5)


def _problems(seed: int, rate: float, minutes: float, kinds: Sequence[str], roles: Sequence[str]) -> list[Problem]:
    problems = [
        *_unlike("--rate", rate, "faults an hour", 60 * MAX_FAULTS),
        *_unlike("--minutes", minutes, "minutes", MAX_MINUTES),
        *([] if seed >= 0 else [Problem("--seed", f"--seed is {seed}: it must be 0 or more.")]),
        *_unknown("--kind", kinds, list(FaultKind)),
        *_unknown("--role", roles, ROLES),
    ]
    if problems:
        return problems
    idle = [kind for kind in FaultKind if kind in kinds and not _targets(kind, roles)]
    for kind in idle:
        able, named = " or ".join(EFFECTS[kind].roles), ", ".join(roles)
        message = f"--kind is {kind}, which does not hit {named}: add --role {able}, or leave the kind out."
        problems.append(Problem("--kind", message))
    count = _count(rate, minutes)
    if not 1 <= count <= MAX_FAULTS:
        message = (
            f"--rate {rate:g} for --minutes {minutes:g} gives {count} faults: it must be one of 1 to {MAX_FAULTS}; "
            "change one of the two."
        )
        problems.append(Problem("--rate", message))
    return problems


def _unlike(option: str, value: float, unit: str, most: float) -> list[Problem]:
    if math.isfinite(value) and 0 < value <= most:
        return []
    return [Problem(option, f"{option} is {value:g}: it must be more than 0 and at most {most:,} {unit}.")]


def _unknown(option: str, named: Sequence[str], known: Sequence[str]) -> list[Problem]:
    expected = ", ".join(known)
    if not named:
        return [Problem(option, f"{option} names nothing: name one of {expected}.")]
    return [
        Problem(option, f"{option} is {name}: it must be one of {expected}.") for name in named if name not in known
    ]
