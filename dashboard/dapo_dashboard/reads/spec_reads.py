"""What is read of the specs of all runs, of each run once: a spec does not change, and who writes one decides how long
it takes to read."""

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import chain, zip_longest
from typing import Final, TypeVar

from dapo_core.db import RunTableRow

T = TypeVar("T")
# What a page waits for; what is not read by then is read for the next one.
SECONDS: Final = 0.5
# Runs of a query. A spec of a megabyte takes a tenth of a second, and one of escapes a third: 12 kB in the database.
FIRST: Final = 4
MOST: Final = 64


def with_new(
    known: Mapping[str, T],
    rows: Sequence[RunTableRow],
    load: Callable[[Sequence[str]], Mapping[str, T]],
    missing: T,
) -> Mapping[str, T]:
    """`known`, by run, and what `load` returns for as many further runs as there is time for: of each namespace in
    turn, so that none waits for another's. `missing` is of those for which it returns nothing."""
    waiting = in_turn([row for row in rows if row.run_id not in known])
    found, at, count, end = dict(known), 0, FIRST, time.monotonic() + SECONDS
    while at < len(waiting) and time.monotonic() < end:
        part = waiting[at : at + count]
        found |= dict.fromkeys(part, missing) | dict(load(part))
        at, count = at + count, min(MOST, 2 * count)
    return found if at else known


def in_turn(rows: Sequence[RunTableRow]) -> list[str]:
    """The runs, one of each namespace after the other."""
    by_namespace: dict[str, list[str]] = defaultdict(list)
    for row in rows:
        by_namespace[row.namespace].append(row.run_id)
    return [run_id for run_id in chain.from_iterable(zip_longest(*by_namespace.values())) if run_id is not None]
