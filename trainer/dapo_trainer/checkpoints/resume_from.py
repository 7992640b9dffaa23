"""`checkpoints.resumeFrom`: which checkpoint of which run a new run starts from."""

import re
from dataclasses import dataclass
from pathlib import Path

from dapo_core.errors import CheckpointError
from dapo_core.objectstore import open_store
from dapo_core.run.checkpoint import Manifest
from dapo_trainer.checkpoints.fit import check_ranks
from dapo_trainer.checkpoints.store import CheckpointStore

_URI = re.compile(r"^(?P<root>[a-z0-9]+://[^?]*)/(?P<run>[^/?]+)/checkpoints/step-(?P<step>\d+)/?(?P<query>\?.*)?$")


@dataclass(frozen=True)
class Source:
    """`root`: the store's URL, None for the run's own store; `step`: None for the newest."""

    run_id: str
    step: int | None
    root: str | None = None


def parse(reference: str) -> Source:
    """A checkpoint's URI (as `dapo show` prints it), `run-id`, or `run-id@step`. Raises CheckpointError."""
    if "://" not in reference:
        run_id, _, step = reference.partition("@")
        return Source(run_id, int(step) if step else None)
    match = _URI.match(reference)
    if match is None:
        raise CheckpointError(
            f"spec.checkpoints.resumeFrom is {reference}, which names no checkpoint: write .../RUN/checkpoints/step-N."
        )
    # What follows the question mark says where the server is, and belongs to the store.
    return Source(match["run"], int(match["step"]), match["root"] + (match["query"] or ""))


def restore(reference: str, own: CheckpointStore, into: Path, ranks: int | None = None) -> tuple[Manifest, str]:
    """Bring the checkpoint that `reference` names to `into`, verified; its manifest and the URL of its store.

    Raises CheckpointError when there is none, SpecError when it is not of so many FSDP ranks.
    """
    source = parse(reference)
    store = own.store if source.root is None else open_store(source.root)
    checkpoints = CheckpointStore(store, source.run_id, mine=own.mine)
    if source.step is not None:
        manifest = checkpoints.manifest(source.step)
        check_ranks(manifest, ranks)
        checkpoints.restore(manifest, into)
        return manifest, store.url
    newest = checkpoints.restore_newest(into, ranks=ranks)
    if newest is None:
        raise CheckpointError(f"spec.checkpoints.resumeFrom is {reference}, but that run has no checkpoint.")
    return newest, store.url
