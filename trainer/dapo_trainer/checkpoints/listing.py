"""The objects of a run's checkpoints in the store, and those that no checkpoint needs. Reads nothing but manifests."""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from dapo_core.errors import CheckpointError
from dapo_core.naming import MANIFEST, checkpoints_prefix, corrupt_key, manifest_key, parse_step_folder, shared_prefix
from dapo_core.objectstore import ObjectInfo
from dapo_core.run.checkpoint import Manifest


@dataclass(frozen=True)
class Listing:
    """Objects by key: those of each step, and those shared between steps."""

    run_id: str
    steps: dict[int, dict[str, ObjectInfo]] = field(default_factory=dict)
    shared: dict[str, ObjectInfo] = field(default_factory=dict)

    @classmethod
    def of(cls, run_id: str, objects: Iterable[ObjectInfo]) -> "Listing":
        """From all objects under the run's checkpoints."""
        listing, prefix = cls(run_id), checkpoints_prefix(run_id)
        for info in objects:
            step = parse_step_folder(info.key.removeprefix(prefix).partition("/")[0])
            if step is not None:
                listing.steps.setdefault(step, {})[info.key] = info
            elif info.key.startswith(shared_prefix(run_id)):
                listing.shared[info.key] = info
        return listing

    @property
    def committed(self) -> list[int]:
        """Steps that have a manifest, newest first."""
        return self._steps_with(manifest_key)

    @property
    def corrupt(self) -> list[int]:
        """Steps that were committed and later marked as corrupt, newest first."""
        return self._steps_with(corrupt_key)

    def _steps_with(self, key: Callable[[str, int], str]) -> list[int]:
        return sorted((step for step, objects in self.steps.items() if key(self.run_id, step) in objects), reverse=True)


@dataclass(frozen=True)
class Leftover:
    """Objects that no checkpoint needs: an incomplete upload, shared files that no checkpoint refers to, or everything
    of a run that is not on record."""

    kind: Literal["TornUpload", "Unused", "UnknownRun"]
    step: int | None
    objects: tuple[ObjectInfo, ...]

    @property
    def keys(self) -> tuple[str, ...]:
        """In the order of their removal: manifests first, so that an interrupted removal leaves no checkpoint."""
        keys = (info.key for info in self.objects)
        return tuple(sorted(keys, key=lambda key: (not key.endswith(MANIFEST), key)))

    @property
    def size_bytes(self) -> int:
        return sum(info.size for info in self.objects)


def leftovers(
    listing: Listing, read: Callable[[int], Manifest], limit: float, busy: Collection[int] = ()
) -> Sequence[Leftover]:
    """What was not changed after `limit`, in Unix seconds. `busy` are steps that are being uploaded now."""
    result = []
    # Where no other checkpoint is left, a corrupt one is kept: it keeps the run from restarting from step 0.
    needed = {*listing.committed, *busy} | (set() if listing.committed else set(listing.corrupt))
    for step in sorted(listing.steps.keys() - needed):
        objects = tuple(listing.steps[step].values())
        if max(info.modified for info in objects) <= limit:
            result.append(Leftover("TornUpload", step, objects))
    unused = () if busy else _unused(listing, read, limit)
    return [*result, Leftover("Unused", None, unused)] if unused else result


def _unused(listing: Listing, read: Callable[[int], Manifest], limit: float) -> tuple[ObjectInfo, ...]:
    """Shared files that no checkpoint refers to; none when a manifest cannot be read, since it may refer to any."""
    old = [info for info in listing.shared.values() if info.modified <= limit]
    try:
        manifests = [read(step) for step in listing.committed] if old else []
    except CheckpointError:
        return ()
    used = {manifest.key(entry) for manifest in manifests for entry in manifest.files}
    return tuple(info for info in old if info.key not in used)
