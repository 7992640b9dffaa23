"""A run that goes on with another number of FSDP ranks."""

import json
import os
import subprocess
import sys
from pathlib import Path

import engines
import pytest
import resharded
import torch

from dapo_core.errors import CheckpointError
from dapo_trainer.demo.warm_start import model, tokenizer
from dapo_trainer.verl_adapter import environment


@pytest.fixture(scope="module", autouse=True)
def _verl() -> None:
    engines.load("dapo_trainer.verl_adapter.rank_extensions")


@pytest.mark.timeout(600)
def test_weights_optimizer_and_schedule_are_the_same_on_1_2_4_and_2_ranks(tmp_path: Path) -> None:
    """Bit for bit, over gloo, saved and loaded by verl's own checkpoint manager; with and without LoRA."""
    variables = os.environ | environment("cpu") | {"OMP_NUM_THREADS": "1"}
    ended = subprocess.run(
        [sys.executable, resharded.__file__, str(tmp_path)], env=variables, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
    made = [line for line in ended.stdout.splitlines() if line.endswith("ranks")]
    assert made == [f"{kind} on {ranks} ranks" for kind in ("weights", "adapters") for ranks in (1, 2, 4, 2)]
    left = {path.name for path in (tmp_path / "adapters" / "global_step_2" / "actor").glob("*.pt")}
    assert not [name for name in left if "_world_size_4_" not in name], "what was written for loading is removed"


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_verl_takes_the_engine_that_reshards(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from verl.workers.engine import EngineRegistry

    from dapo_trainer.verl_adapter.sharded_engine import ShardedEngine

    monkeypatch.setenv("VERL_ENGINE_DEVICE", "cuda")  # as its platform has it on a GPU
    for name, value in environment("cpu" if device == "cpu" else "cuda").items():
        monkeypatch.setenv(name, value)
    assert EngineRegistry.get_engine_cls("language_model", "fsdp2") is ShardedEngine


@pytest.mark.parametrize(
    ("rank", "ranks", "saved", "total", "expected"),
    [
        pytest.param(0, 1, 4, 8, [0, 1, 2, 3], id="one rank reads all"),
        pytest.param(1, 2, 4, 8, [2, 3], id="half of them"),
        pytest.param(3, 4, 2, 8, [1], id="half of one"),
        pytest.param(1, 3, 2, 7, [0, 1], id="across a border"),
        pytest.param(3, 4, 2, 5, [], id="a rank that holds nothing"),
        pytest.param(0, 2, 4, 1, [0], id="one row"),
        pytest.param(0, 2, 4, 0, [], id="no row"),
        pytest.param(1, 2, 4, 5, [1, 2], id="short chunks: 2, 2, 1 and none to 3 and 2"),
    ],
)
def test_who_holds_the_rows_of_a_rank(rank: int, ranks: int, saved: int, total: int, expected: list[int]) -> None:
    from dapo_trainer.verl_adapter.resharding import holders

    assert list(holders(rank, ranks, saved, total)) == expected


@pytest.mark.parametrize("saved", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 8])
def test_rows_are_those_of_torch_chunk(ranks: int, saved: int) -> None:
    """The pieces that a rank reads are together exactly the chunk that FSDP gives it."""
    from dapo_trainer.verl_adapter.resharding import holders, rows_of

    for total in range(20):
        tensor = torch.arange(total)
        chunks = [*tensor.chunk(ranks), *[tensor[:0]] * ranks][:ranks]
        for rank in range(ranks):
            rows = rows_of(rank, ranks, total)
            pieces = [
                tensor[held.start : held.end][rows.within(held)]
                for held in (rows_of(each, saved, total) for each in holders(rank, ranks, saved, total))
            ]
            assert torch.equal(torch.cat([tensor[:0], *pieces]), chunks[rank])


def test_a_folder_without_shards_is_named(tmp_path: Path) -> None:
    from dapo_trainer.verl_adapter.resharding import load, reshard, saved_ranks

    assert saved_ranks(tmp_path) is None
    policy = model(tokenizer())
    with pytest.raises(CheckpointError, match="has no shards of a model"):
        reshard(tmp_path, 0, 2, policy, None)
    (tmp_path / "fsdp_config.json").write_text(json.dumps({"world_size": 4}))
    assert saved_ranks(tmp_path) == 4
    with pytest.raises(CheckpointError, match=r"model_world_size_4_rank_0\.pt cannot be read as a shard"):
        reshard(tmp_path, 0, 2, policy, None)
    (tmp_path / "code.pt").write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    with pytest.raises(CheckpointError, match="cannot be read as a shard"):
        load(tmp_path / "code.pt")
