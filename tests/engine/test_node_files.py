"""Checkpoint files of FSDP ranks on another node of the run's Ray cluster."""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import engines
import pytest
import ray
from ray.cluster_utils import Cluster
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from shards import checkpoint

from dapo_core.errors import CheckpointError
from dapo_core.naming import checkpoint_prefix
from dapo_core.objectstore import open_store
from dapo_trainer.checkpoints.checkpoint_store import CheckpointStore, LocalCheckpoint
from dapo_trainer.checkpoints.restore import Restored
from dapo_trainer.demo.warm_start import model, tokenizer

pytestmark = pytest.mark.timeout(180)

RUN, STEP = "first-20261121-0412-x7k2", 4


@pytest.fixture(scope="module", autouse=True)
def _two_nodes() -> Iterator[None]:
    engines.load("dapo_trainer.verl_adapter.node_files")
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    cluster.add_node(num_cpus=2, resources={"dapo_trainer": 2})
    ray.init(address=cluster.address, log_to_driver=False)
    yield
    ray.shutdown(wait_for_processes=True)
    cluster.shutdown()


def worker() -> Any:
    """A rank's actor. A local class, which Ray sends whole: its processes cannot import this module."""

    class Rank:
        pass

    return ray.remote(Rank)


@pytest.fixture(scope="module")
def ranks() -> list[Any]:
    """Rank 0 on the driver's node, ranks 1 and 2 on the other one."""
    head = ray.get_runtime_context().get_node_id()
    here = worker().options(num_cpus=0, scheduling_strategy=NodeAffinitySchedulingStrategy(head, soft=False))
    there = worker().options(num_cpus=0, resources={"dapo_trainer": 1})
    return [here.remote(), there.remote(), there.remote()]


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """What verl's ranks 1 and 2 wrote on their node. (Both nodes of this test share the disk.)"""
    folder = tmp_path / "global_step_4"
    (folder / "actor").mkdir(parents=True)
    for rank in (1, 2):
        (folder / "actor" / f"model_world_size_3_rank_{rank}.pt").write_text(f"shard {rank}")
    (folder / "actor" / "fsdp_config.json").write_text("{}")
    return folder


def other_nodes(tmp_path: Path, ranks: list[Any]) -> Any:
    from dapo_trainer.verl_adapter.node_files import OtherNodes

    return OtherNodes((tmp_path / "store").as_uri(), RUN, 1, ranks)


def commit(tmp_path: Path, nodes: Any, saved: Path) -> CheckpointStore:
    """A checkpoint of which the driver's node has the data's position, and the other one the shards."""
    here = tmp_path / "here"
    here.mkdir()
    (here / "data.pt").write_text("position")
    checkpoints = CheckpointStore(open_store((tmp_path / "store").as_uri()), RUN)
    local = LocalCheckpoint(STEP, here, 1, "d")
    checkpoints.commit(local, remote_files=lambda step, _: nodes.put(step, saved))
    return checkpoints


def test_one_checkpoint_of_files_from_everywhere(tmp_path: Path, ranks: list[Any], saved: Path) -> None:
    nodes = other_nodes(tmp_path, ranks)
    checkpoints = commit(tmp_path, nodes, saved)
    manifest = checkpoints.manifest(STEP)
    assert sorted(entry.path for entry in manifest.files) == [
        "actor/fsdp_config.json",
        "actor/model_world_size_3_rank_1.pt",
        "actor/model_world_size_3_rank_2.pt",
        "data.pt",
    ]
    checkpoints.verify(manifest)
    (files,) = nodes._files.values()
    given_way = ray.get(files.__ray_call__.remote(lambda _: os.getpriority(os.PRIO_PROCESS, 0)))
    assert given_way == 19, "it uploads beside training, as the driver does"


def test_each_node_brings_what_its_ranks_load(tmp_path: Path, ranks: list[Any], saved: Path) -> None:
    checkpoints = commit(tmp_path, other_nodes(tmp_path, ranks), saved)
    restored = tmp_path / "restored"
    later = other_nodes(tmp_path, [ranks[0], ranks[1], ranks[0]])  # rank 2 has moved to the driver's node
    later.restore(Restored(checkpoints.manifest(STEP), restored, checkpoints.store.url))
    found = sorted(path.relative_to(restored).as_posix() for path in restored.rglob("*") if path.is_file())
    assert found == ["actor/fsdp_config.json", "actor/model_world_size_3_rank_1.pt", "data.pt"]


def test_a_node_brings_the_shards_that_its_ranks_read_of_a_checkpoint_of_more(tmp_path: Path, ranks: list[Any]) -> None:
    """From four ranks to two: the second one, on the other node, reads those of the third and the fourth."""
    folder = checkpoint(tmp_path / "global_step_4", model(tokenizer()), tokenizer(), 4)
    for rank in range(4):
        (folder / "actor" / f"extra_state_world_size_4_rank_{rank}.pt").write_bytes(b"schedule")
    checkpoints = CheckpointStore(open_store((tmp_path / "store").as_uri()), RUN)
    manifest = checkpoints.commit(LocalCheckpoint(STEP, folder, 1, "d"))
    restored = tmp_path / "restored"
    other_nodes(tmp_path, ranks[:2]).restore(Restored(manifest, restored, checkpoints.store.url))
    found = {kind: sorted(path.name for path in restored.rglob(f"{kind}_*.pt")) for kind in ("model", "extra_state")}
    assert found == {
        "model": [f"model_world_size_4_rank_{rank}.pt" for rank in (0, 2, 3)],  # shapes are read from the first one
        "extra_state": ["extra_state_world_size_4_rank_1.pt"],
    }


def test_a_file_damaged_in_the_store_is_told_as_such(tmp_path: Path, ranks: list[Any], saved: Path) -> None:
    nodes = other_nodes(tmp_path, ranks)
    checkpoints = commit(tmp_path, nodes, saved)
    key = f"{checkpoint_prefix(RUN, STEP, 1)}actor/model_world_size_3_rank_1.pt"
    checkpoints.store.put_bytes(key, b"shard x")
    with pytest.raises(CheckpointError, match="rank_1"):
        nodes.restore(Restored(checkpoints.manifest(STEP), tmp_path / "restored", checkpoints.store.url))


def test_ranks_elsewhere_load_weights_before_the_last_file_is_there(
    tmp_path: Path, ranks: list[Any], saved: Path
) -> None:
    for rank in (1, 2):
        (saved / "actor" / f"optim_world_size_3_rank_{rank}.pt").write_text(f"moments {rank}")
    checkpoints = commit(tmp_path, other_nodes(tmp_path, ranks), saved)
    held = tmp_path / "store" / checkpoint_prefix(RUN, STEP, 1) / "actor" / "optim_world_size_3_rank_2.pt"
    content = held.read_bytes()
    held.unlink()
    os.mkfifo(held)  # reading it waits for a writer
    nodes = other_nodes(tmp_path, ranks)
    (tmp_path / "pod").mkdir()
    origin = Restored(checkpoints.manifest(STEP), tmp_path / "pod" / "restored", checkpoints.store.url)
    nodes.begin_restore(origin)
    weights = nodes.wait_for_weights(origin)
    assert sorted(path.name for path in (weights / "actor").iterdir()) == [
        "fsdp_config.json",
        "model_world_size_3_rank_1.pt",
        "model_world_size_3_rank_2.pt",
    ]
    held.write_bytes(content)
    nodes.restore(origin)
    assert (origin.folder / "actor" / held.name).read_bytes() == content
    assert nodes.wait_for_weights(origin) is None and not weights.exists()


def test_what_has_begun_is_not_fetched_twice(tmp_path: Path, ranks: list[Any], saved: Path) -> None:
    nodes = other_nodes(tmp_path, ranks)
    checkpoints = commit(tmp_path, nodes, saved)
    origin = Restored(checkpoints.manifest(STEP), tmp_path / "restored", checkpoints.store.url)
    nodes.begin_restore(origin)
    nodes.restore(origin)
    fetched = origin.folder / "actor" / "model_world_size_3_rank_1.pt"
    inode = fetched.stat().st_ino
    nodes.restore(origin)
    assert fetched.stat().st_ino == inode

    older = replace(origin, folder=tmp_path / "older")  # the head has fallen back to another checkpoint meanwhile
    nodes.restore(older)
    assert (older.folder / "actor" / "model_world_size_3_rank_1.pt").read_text() == "shard 1"
