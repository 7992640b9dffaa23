"""Small checkpoints for tests: what training leaves on the disk, and the stores they go to."""

from collections.abc import Callable
from pathlib import Path

from store_fakes import MemoryStore

from dapo_core.naming import checkpoint_prefix
from dapo_core.objectstore import FolderStore, ObjectStore
from dapo_trainer.checkpoints.checkpoint_store import CheckpointStore, LocalCheckpoint

STORES: dict[str, Callable[[Path], ObjectStore]] = {
    "folder": lambda folder: FolderStore(folder / "store"),
    "memory": lambda _folder: MemoryStore(),
}


def local(folder: Path, step: int, size: int = 1000) -> Path:
    """What training leaves: a few files, one of them in a folder."""
    made = folder / f"global_step_{step}"
    (made / "actor").mkdir(parents=True)
    (made / "actor" / "model.pt").write_bytes(bytes([step]) * size)
    (made / "data.pt").write_bytes(b"position %d" % step)
    return made


def shards(folder: Path, step: int, ranks: int = 1) -> Path:
    """What verl's ranks leave: shards of the model, of the optimizer's state, and how many there are."""
    made = local(folder, step)
    for rank in range(ranks):
        for kind in ("model", "optim"):
            file = made / "actor" / f"{kind}_world_size_{ranks}_rank_{rank}.pt"
            file.write_bytes(b"%s %d of %d" % (kind.encode(), rank, step))
    (made / "actor" / "fsdp_config.json").write_text("{}")
    return made


def save(checkpoints: CheckpointStore, folder: Path, *steps: int, **metrics: float) -> None:
    for step in steps:
        checkpoints.commit(LocalCheckpoint(step, local(folder, step), 1, "d", metrics=metrics))


def harm(store: ObjectStore, step: int, name: str, change: Callable[[bytes], bytes]) -> None:
    key = checkpoint_prefix("r", step, 1) + name
    store.put_bytes(key, change(store.get_bytes(key)))
