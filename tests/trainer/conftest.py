"""Checkpoint stores that several files of tests start from."""

from pathlib import Path

import pytest
from checkpoint_folders import STORES
from store_fakes import Notebook

from dapo_core.objectstore import ObjectStore
from dapo_trainer.checkpoints.checkpoint_store import CheckpointStore


@pytest.fixture(params=list(STORES.values()), ids=list(STORES))
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    made: ObjectStore = request.param(tmp_path)
    return made


@pytest.fixture
def notes() -> Notebook:
    return Notebook()


@pytest.fixture
def checkpoints(store: ObjectStore, notes: Notebook) -> CheckpointStore:
    return CheckpointStore(store, "r", notes)
