"""Where a run starts that goes on from another run's checkpoint."""

from pathlib import Path

import pytest

from dapo_core.errors import CheckpointError
from dapo_core.objectstore import FolderStore
from dapo_trainer.checkpoints.checkpoint_store import CheckpointStore, LocalCheckpoint
from dapo_trainer.checkpoints.restore import CheckpointReference, parse_reference, restore_reference


@pytest.mark.parametrize(
    ("reference", "source"),
    [
        pytest.param("math-1", CheckpointReference("math-1", None), id="newest-of-a-run"),
        pytest.param("math-1@40", CheckpointReference("math-1", 40), id="one-step"),
        pytest.param(
            "file:///data/store/math-1/checkpoints/step-000040",
            CheckpointReference("math-1", 40, "file:///data/store"),
            id="uri",
        ),
        pytest.param(
            "s3://bucket/math-1/checkpoints/step-000040/", CheckpointReference("math-1", 40, "s3://bucket"), id="s3"
        ),
        pytest.param(
            "s3://bucket/math-1/checkpoints/step-000040-attempt-12?region=x",
            CheckpointReference("math-1", 40, "s3://bucket?region=x", 12),
            id="of one attempt",
        ),
    ],
)
def test_what_a_reference_names(reference: str, source: CheckpointReference) -> None:
    assert parse_reference(reference) == source


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    """Two committed checkpoints of the run `math-1`."""
    store = FolderStore(tmp_path / "store")
    for step in (20, 40):
        folder = tmp_path / f"local-{step}"
        folder.mkdir()
        (folder / "model.pt").write_text(f"weights of step {step}")
        CheckpointStore(store, "math-1").commit(LocalCheckpoint(step, folder, 1, "d"))
    return store


@pytest.mark.parametrize(("reference", "step"), [("math-1", 40), ("math-1@20", 20)])
def test_the_named_checkpoint_is_restored(store: FolderStore, tmp_path: Path, reference: str, step: int) -> None:
    assert restore_reference(reference, CheckpointStore(store, "this-run"), tmp_path / "into")[0].step == step
    assert (tmp_path / "into" / "model.pt").read_text() == f"weights of step {step}"


def test_a_uri_opens_its_own_store(store: FolderStore, tmp_path: Path) -> None:
    uri = CheckpointStore(store, "math-1").uri(20, 1)
    assert (
        restore_reference(uri, CheckpointStore(FolderStore(tmp_path / "other"), "this-run"), tmp_path / "into")[0].step
        == 20
    )


@pytest.mark.parametrize("reference", ["nobody", "math-1@30", "file:///somewhere/else"])
def test_what_is_not_there_is_refused_with_its_name(store: FolderStore, tmp_path: Path, reference: str) -> None:
    with pytest.raises(CheckpointError) as refused:
        restore_reference(reference, CheckpointStore(store, "this-run"), tmp_path / "into")
    assert reference.partition("@")[0] in str(refused.value)
