"""Which checkpoints of a run the object store has: their addresses and manifests. Changes nothing."""

import logging
from collections.abc import Sequence

from dapo_core.errors import CheckpointError
from dapo_core.naming import NO_ATTEMPT, checkpoint_prefix, checkpoints_prefix, manifest_key
from dapo_core.objectstore import ObjectNotFoundError, ObjectStore
from dapo_core.run.checkpoint import Manifest, committed, parse_manifest
from dapo_trainer.checkpoints.listing import CheckpointId, Listing

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
            manifest = parse_manifest(self.store.get_bytes(key), key)
        except ObjectNotFoundError as error:
            raise CheckpointError(f"The run {self.run_id} has no committed checkpoint at step {name.step}.") from error
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
