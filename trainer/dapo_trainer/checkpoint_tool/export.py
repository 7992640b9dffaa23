"""A checkpoint as a model folder in Hugging Face's format: for evaluation, and for whoever serves or trains it next."""

import shutil
from dataclasses import replace
from pathlib import Path

from dapo_core.errors import CheckpointError
from dapo_core.run.checkpoint import Manifest
from dapo_trainer.checkpoints.store import CheckpointStore

# Of a checkpoint's files, those that a model is made of; optimizer and data queue are most of its size.
_WEIGHTS = ("actor/huggingface/", "actor/model_", "actor/fsdp_config.json", "actor/lora_train_meta.json")


def export(checkpoints: CheckpointStore, step: int | None, target: Path) -> Manifest:
    """Fetch the weights of `step` (None: the newest whole checkpoint), verified, and write the model to `target`.

    `target` is there in whole or not at all. Raises CheckpointError for a checkpoint that is absent, damaged or of
    no known kind, StoreError when the store or the disk fails. Imports verl: its process has the variables of
    `verl_adapter.environment` from its start.
    """
    manifest = checkpoints.manifest(step) if step is not None else _newest(checkpoints)
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
        raise CheckpointError(f"{checkpoint} can not be put together to a model ({_first_line(error)}).") from error


def _newest(checkpoints: CheckpointStore) -> Manifest:
    for manifest in checkpoints.list():
        return manifest
    raise CheckpointError(f"The run {checkpoints.run_id} has no committed checkpoint.")


def _weights(manifest: Manifest) -> Manifest:
    """The manifest of the model's files alone. Raises CheckpointError when there are none."""
    files = tuple(entry for entry in manifest.files if entry.path.startswith(_WEIGHTS))
    if not any(entry.path.startswith("actor/model_") for entry in files):
        raise CheckpointError(f"The checkpoint of step {manifest.step} holds no actor/model_*: it has no model.")
    return replace(manifest, files=files)


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
