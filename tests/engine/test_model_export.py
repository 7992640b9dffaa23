"""Checkpoints as model folders: the shards of several ranks put together, in the model's own number format."""

from pathlib import Path

import engines
import pytest
import torch
from shards import adapted_checkpoint, checkpoint
from store_fakes import MemoryStore
from transformers import AutoTokenizer, Qwen2ForCausalLM

from dapo_core.errors import CheckpointError
from dapo_trainer.checkpoint_tool.model_export import export
from dapo_trainer.checkpoints.checkpoint_store import CheckpointStore, LocalCheckpoint
from dapo_trainer.demo.warm_start import model, tokenizer


@pytest.fixture(scope="module", autouse=True)
def _verl() -> None:
    engines.load("dapo_trainer.verl_adapter.merge")


@pytest.fixture
def store() -> CheckpointStore:
    return CheckpointStore(MemoryStore(), "r")


@pytest.mark.parametrize(
    ("ranks", "dtype"),
    [
        pytest.param(1, torch.float32, id="one rank"),
        pytest.param(2, torch.float32, id="two ranks of unequal shares"),
        pytest.param(3, torch.bfloat16, id="three ranks, rounded as vLLM had it"),
    ],
)
def test_shards_become_one_model(ranks: int, dtype: torch.dtype, tmp_path: Path, store: CheckpointStore) -> None:
    policy = model(tokenizer())
    policy.config.dtype = dtype
    store.commit(LocalCheckpoint(7, checkpoint(tmp_path / "global_step_7", policy, tokenizer(), ranks), 1, "d"))
    assert export(store, None, tmp_path / "model").step == 7
    exported = Qwen2ForCausalLM.from_pretrained(tmp_path / "model")
    assert exported.dtype == dtype
    for name, weight in policy.state_dict().items():
        assert torch.equal(exported.state_dict()[name], weight.to(dtype)), name
    assert AutoTokenizer.from_pretrained(tmp_path / "model").chat_template
    assert sorted(path.name for path in tmp_path.iterdir()) == ["global_step_7", "model"], "nothing half-made is left"
    fetched = {key for operation, key in store.store.log if operation == "get"}  # type: ignore[attr-defined]
    assert not any("optim" in key or "data.pt" in key for key in fetched), "only the weights are fetched"


@pytest.mark.parametrize("ranks", [1, 2])
def test_b5_adapters_are_merged_into_the_model(ranks: int, tmp_path: Path, store: CheckpointStore) -> None:
    policy = model(tokenizer())
    policy.config.dtype = torch.float32
    folder = adapted_checkpoint(tmp_path / "global_step_7", policy, tokenizer(), ranks)
    store.commit(LocalCheckpoint(7, folder, 1, "d"))
    export(store, 7, tmp_path / "model")
    exported = Qwen2ForCausalLM.from_pretrained(tmp_path / "model").state_dict()
    assert exported.keys() == policy.state_dict().keys()
    for name, weight in policy.state_dict().items():
        torch.testing.assert_close(exported[name], weight, msg=name)


def test_b5_adapters_of_unknown_scale_are_not_exported(tmp_path: Path, store: CheckpointStore) -> None:
    folder = adapted_checkpoint(tmp_path / "c", model(tokenizer()), tokenizer(), 1)
    (folder / "actor" / "lora_train_meta.json").unlink()
    store.commit(LocalCheckpoint(1, folder, 1, "d"))
    with pytest.raises(CheckpointError, match=r"lora_train_meta\.json"):
        export(store, 1, tmp_path / "model")


def test_a_model_that_was_there_is_replaced(tmp_path: Path, store: CheckpointStore) -> None:
    store.commit(LocalCheckpoint(1, checkpoint(tmp_path / "c", model(tokenizer()), tokenizer(), 1), 1, "d"))
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "stale").touch()
    export(store, 1, tmp_path / "model")
    assert not (tmp_path / "model" / "stale").exists()


@pytest.mark.parametrize(
    ("files", "step", "sentence"),
    [
        pytest.param({}, 1, "no committed checkpoint at step 1", id="no such step"),
        pytest.param({}, None, "run r has no committed checkpoint", id="no checkpoint at all"),
        pytest.param({"data.pt": b"x"}, 1, "holds no actor/model_\\*", id="no model in it"),
        pytest.param(
            {"actor/model_world_size_1_rank_0.pt": b"x", "actor/huggingface/config.json": b"{}"},
            1,
            "cannot be merged into a model",
            id="not what verl writes",
        ),
    ],
)
def test_what_cannot_be_exported(
    files: dict[str, bytes], step: int | None, sentence: str, tmp_path: Path, store: CheckpointStore
) -> None:
    for name, data in files.items():
        path = tmp_path / "c" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    if files:
        store.commit(LocalCheckpoint(1, tmp_path / "c", 1, "d"))
    with pytest.raises(CheckpointError, match=sentence):
        export(store, step, tmp_path / "model")
    assert not (tmp_path / "model").exists()


class Payload:
    """What runs when a pickle with it is loaded."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, ...]:
        return (Path.touch, (self.mark,))


@pytest.mark.parametrize("rank", [0, 1])
def test_a12_a_crafted_checkpoint_runs_no_code(rank: int, tmp_path: Path, store: CheckpointStore) -> None:
    folder = checkpoint(tmp_path / "c", model(tokenizer()), tokenizer(), 2)
    shard = folder / "actor" / f"model_world_size_2_rank_{rank}.pt"
    torch.save({**torch.load(shard, weights_only=True), "extra": Payload(tmp_path / "ran")}, shard)
    store.commit(LocalCheckpoint(1, folder, 1, "d"))
    with pytest.raises(CheckpointError, match="cannot be merged"):
        export(store, 1, tmp_path / "model")
    assert not (tmp_path / "ran").exists() and not (tmp_path / "model").exists()
