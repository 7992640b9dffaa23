"""Which checkpoints of a run the object store has: their objects, addresses and manifests, and what none of them needs.

Reads nothing but manifests, and changes nothing.
"""

import logging
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

from dapo_core.errors import CheckpointError
from dapo_core.naming import (
    MANIFEST,
    NO_ATTEMPT,
    checkpoint_prefix,
    checkpoints_prefix,
    corrupt_key,
    manifest_key,
    parse_checkpoint_folder,
    samples_prefix,
    shared_prefix,
)
from dapo_core.objectstore import ObjectInfo, ObjectNotFoundError, ObjectStore, ObjectTooLargeError
from dapo_core.run.checkpoint import Manifest, committed, parse_manifest

# Of a manifest: enough for fifty thousand files.
_MANIFEST_BYTES: Final = 16 * 1024 * 1024
_SAMPLES: Final = re.compile(r"step-(\d{6,16})-attempt-\d+(-groups|-tokens)?\.parquet")


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


log = logging.getLogger(__name__)


class StoredCheckpoints:
    """The checkpoints of one run, to read. Methods raise StoreError when the store fails, CheckpointError for a
    checkpoint."""

    def __init__(self, store: ObjectStore, run_id: str) -> None:
        self.store = store
        self.run_id = run_id

    def uri(self, step: int, attempt: int) -> str:
        """The address of the checkpoint that an attempt wrote at `step`, for people and for `resumeFrom`."""
        return self.store.address(checkpoint_prefix(self.run_id, step, attempt).rstrip("/"))

    def steps(self) -> list[int]:
        """Steps that have a committed checkpoint, newest first."""
        return list(dict.fromkeys(name.step for name in self.listing().committed))

    def manifest(self, step: int, attempt: int | None = None) -> Manifest:
        """The manifest of `step`, as `attempt` or else the highest attempt wrote it.

        Raises CheckpointError when it is missing, corrupt or of a different step.
        """
        if attempt is not None:
            return self.read(CheckpointId(step, attempt))
        for name in self.listing().committed:
            if name.step == step:
                return self.read(name)
        raise CheckpointError(f"The run {self.run_id} has no committed checkpoint at step {step}.")

    def read(self, name: CheckpointId) -> Manifest:
        """The manifest of one checkpoint. Raises CheckpointError when it is missing or corrupt."""
        key = manifest_key(self.run_id, *name)
        try:
            manifest = parse_manifest(self.store.get_bytes(key, _MANIFEST_BYTES), key)
        except ObjectNotFoundError as error:
            raise CheckpointError(f"The run {self.run_id} has no committed checkpoint at step {name.step}.") from error
        except ObjectTooLargeError as error:
            raise CheckpointError(str(error)) from error
        if (manifest.run_id, manifest.step, manifest.keyed_attempt) != (self.run_id, *name):
            raise CheckpointError(f"{key} is of step {manifest.step} of the run {manifest.run_id}.")
        return manifest

    def manifests(self, listing: Listing | None = None) -> Sequence[Manifest]:
        """Those of the committed checkpoints, newest first, one for each step: that of the highest attempt. `listing`:
        as of then, default: now.

        One that cannot be read is logged and left out.
        """
        readable: dict[int, Manifest] = {}
        for name in (listing or self.listing()).committed:
            try:
                if name.step not in readable:
                    readable[name.step] = self.read(name)
            except CheckpointError as error:
                log.warning("%s", error)
        return committed(readable.values())

    def uri_of(self, manifest: Manifest) -> str:
        """The address of a committed checkpoint."""
        return self.uri(manifest.step, manifest.keyed_attempt)

    def newest_attempt(self, listing: Listing | None = None) -> int:
        """The highest attempt that has committed a checkpoint; 0 for none. `listing`: as of then, default: now."""
        listing = listing or self.listing()
        names = listing.committed
        if any(name.attempt == NO_ATTEMPT for name in names):  # only the manifest knows it
            return max((manifest.attempt for manifest in self.manifests(listing)), default=0)
        return max((name.attempt for name in names), default=0)

    def listing(self) -> Listing:
        """All objects of the run's checkpoints."""
        return Listing.of(self.run_id, self.store.list(checkpoints_prefix(self.run_id)))
