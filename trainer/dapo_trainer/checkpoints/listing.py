"""The objects of a run's checkpoints in the store, and those that no checkpoint needs. Reads nothing but manifests."""

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

from dapo_core.errors import CheckpointError
from dapo_core.naming import (
    MANIFEST,
    checkpoints_prefix,
    corrupt_key,
    manifest_key,
    parse_checkpoint_folder,
    samples_prefix,
    shared_prefix,
)
from dapo_core.objectstore import ObjectInfo
from dapo_core.run.checkpoint import Manifest

_SAMPLES: Final = re.compile(r"step-(\d{6,16})-attempt-\d+\.parquet")


class CheckpointId(NamedTuple):
    """One checkpoint of a run: its step and the attempt in its keys (`naming.NO_ATTEMPT` for an earlier version's)."""

    step: int
    attempt: int


@dataclass(frozen=True)
class Listing:
    """Objects by key: those of each checkpoint, and those shared between checkpoints."""

    run_id: str
    checkpoints: dict[CheckpointId, dict[str, ObjectInfo]] = field(default_factory=dict)
    shared: dict[str, ObjectInfo] = field(default_factory=dict)

    @classmethod
    def of(cls, run_id: str, objects: Iterable[ObjectInfo]) -> "Listing":
        """From all objects under the run's checkpoints."""
        listing, prefix = cls(run_id), checkpoints_prefix(run_id)
        for info in objects:
            parsed = parse_checkpoint_folder(info.key.removeprefix(prefix).partition("/")[0])
            if parsed is not None:
                listing.checkpoints.setdefault(CheckpointId(*parsed), {})[info.key] = info
            elif info.key.startswith(shared_prefix(run_id)):
                listing.shared[info.key] = info
        return listing

    @property
    def committed(self) -> list[CheckpointId]:
        """Those that have a manifest, by step, then by attempt, newest first."""
        return self._with(manifest_key)

    @property
    def corrupt(self) -> list[CheckpointId]:
        """Those that were committed and later marked as corrupt, newest first."""
        return self._with(corrupt_key)

    def _with(self, key: Callable[[str, int, int], str]) -> list[CheckpointId]:
        found = (name for name, objects in self.checkpoints.items() if key(self.run_id, *name) in objects)
        return sorted(found, reverse=True)


@dataclass(frozen=True)
class Leftover:
    """Objects that no checkpoint needs: an incomplete upload, shared files that no checkpoint refers to, everything of
    a run that is not on record, or samples that are older than they are to be kept."""

    kind: Literal["TornUpload", "Unused", "UnknownRun", "OldSamples"]
    checkpoint: CheckpointId | None
    objects: tuple[ObjectInfo, ...]

    @property
    def step(self) -> int | None:
        return None if self.checkpoint is None else self.checkpoint.step

    @property
    def keys(self) -> tuple[str, ...]:
        """In the order of their removal: manifests first, so that an interrupted removal leaves no checkpoint."""
        keys = (info.key for info in self.objects)
        return tuple(sorted(keys, key=lambda key: (not key.endswith(MANIFEST), key)))

    @property
    def size_bytes(self) -> int:
        return sum(info.size for info in self.objects)


def leftovers(
    listing: Listing, read: Callable[[CheckpointId], Manifest], limit: float, busy: Collection[int] = ()
) -> Sequence[Leftover]:
    """What was not changed after `limit`, in Unix seconds. `busy` are steps that are being uploaded now."""
    result = []
    # Where no other checkpoint is left, a corrupt one is kept: it keeps the run from restarting from step 0.
    needed = set(listing.committed) | (set() if listing.committed else set(listing.corrupt))
    for name in sorted(name for name in listing.checkpoints.keys() - needed if name.step not in busy):
        objects = tuple(listing.checkpoints[name].values())
        if max(info.modified for info in objects) <= limit:
            result.append(Leftover("TornUpload", name, objects))
    unused = () if busy else _unused(listing, read, limit)
    return [*result, Leftover("Unused", None, unused)] if unused else result


def old_samples(run_id: str, objects: Iterable[ObjectInfo], limit: float) -> Sequence[Leftover]:
    """The run's samples that were stored before `limit`, in Unix seconds, except those of its last step."""
    prefix = samples_prefix(run_id)
    by_step: dict[int, list[ObjectInfo]] = {}
    for info in objects:
        if found := _SAMPLES.fullmatch(info.key.removeprefix(prefix)):
            by_step.setdefault(int(found[1]), []).append(info)
    last = max(by_step, default=None)
    old = tuple(
        info for step, infos in sorted(by_step.items()) if step != last for info in infos if info.modified <= limit
    )
    return [Leftover("OldSamples", None, old)] if old else []


def _unused(listing: Listing, read: Callable[[CheckpointId], Manifest], limit: float) -> tuple[ObjectInfo, ...]:
    """Shared files that no checkpoint refers to; none when a manifest cannot be read, since it may refer to any."""
    old = [info for info in listing.shared.values() if info.modified <= limit]
    try:
        manifests = [read(name) for name in listing.committed] if old else []
    except CheckpointError:
        return ()
    used = {manifest.key(entry) for manifest in manifests for entry in manifest.files}
    return tuple(info for info in old if info.key not in used)
