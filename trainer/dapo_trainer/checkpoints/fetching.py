"""A checkpoint's files on their way to the disk: several at a time, and those first that ranks load first."""

import os
import shutil
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

from dapo_core.objectstore import ObjectStore
from dapo_core.parallel import parallel
from dapo_core.run.checkpoint import FileEntry, Manifest, is_model_shard
from dapo_trainer.checkpoints.checkpoint_files import fetch

# Files at a time; nothing trains while a checkpoint is restored.
RESTORE_WORKERS: Final = 4
_WEIGHTS: Final = ".weights"
WeightsArrived = Callable[[Manifest, Path], None]
"""Called with a checkpoint and the folder of its weights, while its other files are being fetched."""


def fetch_files(
    store: ObjectStore,
    manifest: Manifest,
    entries: Sequence[FileEntry],
    folder: Path,
    caches: Sequence[Path] = (),
    weights: WeightsArrived | None = None,
) -> None:
    """Write files of a checkpoint to `folder`, each from the first of `caches` that has it unchanged, else from the
    store, verified. `weights` is called with the folder of the files that ranks load first, once all have arrived.

    Raises CheckpointError when one is missing or corrupt, StoreError when the store fails, OSError when the disk does.
    """
    first = [entry for entry in entries if is_model_shard(entry.path) or entry.path.endswith(".json")]
    missing, lock = {entry.path for entry in first}, threading.Lock()

    def fetch_one(entry: FileEntry) -> None:
        fetch(store, manifest, entry, folder, caches)
        with lock:
            last = missing == {entry.path}
            missing.discard(entry.path)
        if last and weights is not None and any(is_model_shard(entry.path) for entry in first):
            linked = _links(first, folder, _weights_folder(manifest, folder))
            if linked is not None:
                weights(manifest, linked)

    parallel(fetch_one, [*first, *(entry for entry in entries if entry not in first)], RESTORE_WORKERS)


def remove_weights(work: Path) -> None:
    """Remove the folders of weights in `work`: nobody loads from them any more."""
    for folder in work.glob(f".*{_WEIGHTS}"):
        shutil.rmtree(folder, ignore_errors=True)


def _weights_folder(manifest: Manifest, folder: Path) -> Path:
    return folder.with_name(f".step-{manifest.step}-attempt-{manifest.keyed_attempt}{_WEIGHTS}")


def _links(entries: Iterable[FileEntry], folder: Path, into: Path) -> Path | None:
    """Links to files in a folder of their own: what else is fetched, or fetched again after an error, does not change
    what is being loaded. None where the disk has no links: then all files are loaded together."""
    if into.is_dir():  # of an earlier try, and verified then
        return into
    part = into.with_name(f"{into.name}.part{_WEIGHTS}")
    shutil.rmtree(part, ignore_errors=True)
    try:
        for entry in entries:
            target = part / entry.path
            target.parent.mkdir(parents=True, exist_ok=True)
            os.link(folder / entry.path, target)
        return part.rename(into)
    except OSError:
        shutil.rmtree(part, ignore_errors=True)
        return None
