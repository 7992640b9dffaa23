"""What lies in the store for a run, and what of it no checkpoint needs. Pure but for asking for manifests."""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from dapo_core.errors import CheckpointError
from dapo_core.naming import MANIFEST, checkpoints_prefix, condemned_key, manifest_key, parse_step_folder, shared_prefix
from dapo_core.objectstore import ObjectInfo
from dapo_core.run.checkpoint import Manifest


@dataclass(frozen=True)
class Listing:
    """Objects by key: of each step, and shared between steps."""

    run_id: str
    steps: dict[int, dict[str, ObjectInfo]] = field(default_factory=dict)
    shared: dict[str, ObjectInfo] = field(default_factory=dict)

    @classmethod
    def of(cls, run_id: str, objects: Iterable[ObjectInfo]) -> "Listing":
        """From all objects under the run's checkpoints."""
        found, prefix = cls(run_id), checkpoints_prefix(run_id)
        for info in objects:
            step = parse_step_folder(info.key.removeprefix(prefix).partition("/")[0])
            if step is not None:
                found.steps.setdefault(step, {})[info.key] = info
            elif info.key.startswith(shared_prefix(run_id)):
                found.shared[info.key] = info
        return found

    @property
    def committed(self) -> list[int]:
        """Steps that have a manifest, newest first."""
        return self._having(manifest_key)

    @property
    def condemned(self) -> list[int]:
        """Steps that were committed and proved damaged, newest first."""
        return self._having(condemned_key)

    def _having(self, key: Callable[[str, int], str]) -> list[int]:
        return sorted((step for step, objects in self.steps.items() if key(self.run_id, step) in objects), reverse=True)


@dataclass(frozen=True)
class Leftover:
    """Objects that no checkpoint needs: of an upload that never ended, shared files that nothing names any more, or
    all of a run that is not on record."""

    kind: Literal["TornUpload", "Unused", "UnknownRun"]
    step: int | None
    objects: tuple[ObjectInfo, ...]

    @property
    def keys(self) -> tuple[str, ...]:
        """In the order of their removal: manifests first, so that what is cut off half-way is no checkpoint."""
        keys = (info.key for info in self.objects)
        return tuple(sorted(keys, key=lambda key: (not key.endswith(MANIFEST), key)))

    @property
    def size_bytes(self) -> int:
        return sum(info.size for info in self.objects)


def leftovers(
    listing: Listing, manifest: Callable[[int], Manifest], limit: float, busy: Collection[int] = ()
) -> Sequence[Leftover]:
    """What nothing was added to since `limit`, in Unix seconds. `busy` are steps that are being uploaded now."""
    found = []
    # Where nothing else is left, what proved damaged stays: it keeps the run from beginning anew.
    needed = {*listing.committed, *busy} | (set() if listing.committed else set(listing.condemned))
    for step in sorted(listing.steps.keys() - needed):
        objects = tuple(listing.steps[step].values())
        if max(info.modified for info in objects) <= limit:
            found.append(Leftover("TornUpload", step, objects))
    unused = () if busy else _unused(listing, manifest, limit)
    return [*found, Leftover("Unused", None, unused)] if unused else found


def _unused(listing: Listing, manifest: Callable[[int], Manifest], limit: float) -> tuple[ObjectInfo, ...]:
    """Shared files that no checkpoint names; none where a manifest can not be read, for it may name any."""
    old = [info for info in listing.shared.values() if info.modified <= limit]
    try:
        manifests = [manifest(step) for step in listing.committed] if old else []
    except CheckpointError:
        return ()
    named = {found.key(entry) for found in manifests for entry in found.files}
    return tuple(info for info in old if info.key not in named)
