"""A checkpoint as a model folder in Hugging Face's format: for evaluation, serving or further training."""

import shutil
from dataclasses import replace
from pathlib import Path

from dapo_core.errors import CheckpointError, first_line
from dapo_core.run.checkpoint import Manifest
from dapo_trainer.checkpoints.checkpoint_store import CheckpointStore

# The files of a checkpoint that hold its model; optimizer state and data queue are most of its size.
_WEIGHTS = ("actor/huggingface/", "actor/model_", "actor/fsdp_config.json", "actor/lora_train_meta.json")


def export(checkpoints: CheckpointStore, step: int | None, target: Path, attempt: int | None = None) -> Manifest:
    """Fetch the weights of `step` (None: the newest checkpoint), verified, and write the model to `target`. `attempt`:
    who wrote the checkpoint, by default the highest attempt.

    Returns the checkpoint's manifest; after an error there is no new `target`. Raises CheckpointError for a checkpoint
    that is missing, corrupt or of an unknown kind, StoreError when the store or the disk fails. Imports verl, so the
    process needs the variables of `verl_adapter.environment` from its start.
    """
    manifest = checkpoints.manifest(step, attempt) if step is not None else _newest(checkpoints)
    fetched, part = target.with_name(f".{target.name}.shards"), target.with_name(f".{target.name}.merging")
    try:
        checkpoints.restore(_weights(manifest), fetched)
        merge(fetched, part)
        if target.exists():
            shutil.rmtree(target)
        part.rename(target)
    finally:
        shutil.rmtree(fetched, ignore_errors=True)
        shutil.rmtree(part, ignore_errors=True)
    return manifest


def merge(checkpoint: Path, target: Path) -> None:
    """Write a checkpoint's folder (verl's `global_step_N`) as a model folder. Raises CheckpointError."""
    from dapo_trainer.verl_adapter import merge as adapter

    target.mkdir(parents=True, exist_ok=True)
    try:
        adapter.merge(checkpoint, target)
    except Exception as error:  # verl raises assertions, torch pickling errors, transformers OSErrors
        raise CheckpointError(f"{checkpoint} cannot be merged into a model ({first_line(error)}).") from error


def _newest(checkpoints: CheckpointStore) -> Manifest:
    for manifest in checkpoints.manifests():
        return manifest
    raise CheckpointError(f"The run {checkpoints.run_id} has no committed checkpoint.")


def _weights(manifest: Manifest) -> Manifest:
    """The manifest with only the model's files. Raises CheckpointError when there are none."""
    files = tuple(entry for entry in manifest.files if entry.path.startswith(_WEIGHTS))
    if not any(entry.path.startswith("actor/model_") for entry in files):
        raise CheckpointError(f"The checkpoint at step {manifest.step} has no model: it holds no actor/model_* files.")
    return replace(manifest, files=files)
