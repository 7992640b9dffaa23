"""What `dapo checkpoints sweep` finds and removes."""

import time
from collections.abc import Sequence

from dapo_core.errors import Problem, SpecError
from dapo_core.objectstore import open_store
from dapo_core.run.home import Home
from dapo_trainer.checkpoint_tool.place import find, journal, open_record, run_ids
from dapo_trainer.checkpoints.leftovers import Leftover
from dapo_trainer.checkpoints.store import CheckpointStore

Swept = Sequence[tuple[CheckpointStore, Sequence[Leftover]]]


def found_in(run: str | None, home: Home, grace_seconds: float, unknown_runs: bool) -> Swept:
    """What nothing was added to for `grace_seconds`, of one run or of all that the store has.

    Raises SpecError when runs that are not on record are asked for and none is: that is the wrong record.
    """
    if run is not None:
        checkpoints = find(run, home).checkpoints
        return [(checkpoints, checkpoints.leftovers(grace_seconds))]
    store, reader = open_store(home.store_url), open_record(home)
    known = {} if reader is None else {row.run_id: row for row in reader.runs()}
    there = run_ids(store)
    if unknown_runs and not known.keys() & set(there):
        sentence = f"None of the runs in {store.url} is on record, so this is the record of another place: name it with"
        raise SpecError([Problem("--unknown-runs", f"{sentence} --metadata or --home.")])
    found: list[tuple[CheckpointStore, Sequence[Leftover]]] = []
    for run_id in there:
        checkpoints = CheckpointStore(store, run_id, journal(run_id, known.get(run_id), home))
        if run_id in known or not unknown_runs:
            found.append((checkpoints, checkpoints.leftovers(grace_seconds)))
        else:
            found.append((checkpoints, _all_of(checkpoints, time.time() - grace_seconds)))
    return found


def _all_of(checkpoints: CheckpointStore, limit: float) -> Sequence[Leftover]:
    objects = tuple(checkpoints.store.list(f"{checkpoints.run_id}/"))
    return [Leftover("UnknownRun", None, objects)] if max(info.modified for info in objects) <= limit else []


def sweep_all(found: Swept) -> int:
    """Remove what was found; how many objects. A manifest goes before its files, as in every removal."""
    removed = 0
    for checkpoints, leftovers in found:
        for leftover in leftovers:
            checkpoints.drop(leftover)
            removed += len(leftover.keys)
    return removed
