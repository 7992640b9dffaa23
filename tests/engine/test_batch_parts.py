"""What the driver computes over a batch is the same in parts of it as over the whole, except for its memory."""

import ast
import inspect
import random
import textwrap
from types import ModuleType
from typing import Any

import engines
import pytest
import torch
from omegaconf import OmegaConf
from verl_algorithm import VERL_ALGORITHM

from dapo_trainer.verl_config.compose import _defaults

RESPONSES = 4
CONFIG = {
    "algorithm": VERL_ALGORITHM,
    "actor_rollout_ref": {
        "actor": {"loss_agg_mode": "token-mean", "loss_scale_factor": None},
        "rollout": {"n": RESPONSES, "calculate_log_probs": True, "temperature": 1.0},
    },
}


class Rows:
    """The data queue's two calls; rows by key."""

    def __init__(self, lengths: list[int], masked: set[int]) -> None:
        draw = torch.Generator().manual_seed(1)
        self.keys = [f"p{row // RESPONSES}_{row % RESPONSES}_0" for row in range(len(lengths))]
        self.rows: dict[str, dict[str, Any]] = {}
        self.largest = 0
        for row, (key, length) in enumerate(zip(self.keys, lengths, strict=True)):
            scores = torch.zeros(length)
            scores[-1] = float(row % 3 == 0)
            mask = torch.zeros(length, dtype=torch.int64) if row in masked else torch.ones(length, dtype=torch.int64)
            self.rows[key] = {
                "responses": torch.ones(length, dtype=torch.int64),
                "response_mask": mask,
                "rm_scores": scores,
                "rollout_log_probs": -torch.rand(length, generator=draw),
                "log_probs": -torch.rand(length + 2, generator=draw),
                "entropy": torch.rand(length + 2, generator=draw),
            }
        self.tags = [
            {"response_len": length, "loss_tokens": int(self.rows[key]["response_mask"].sum())}
            for key, length in zip(self.keys, lengths, strict=True)
        ]

    def kv_batch_get(self, keys: list[str], partition_id: str, select_fields: list[str]) -> Any:
        from tensordict import NonTensorStack, TensorDict

        rows = [self.rows[key] for key in keys]
        self.largest = max(self.largest, len(keys))
        found: dict[str, Any] = {
            name: torch.nested.as_nested_tensor([row[name] for row in rows], layout=torch.jagged)
            for name in select_fields
            if name in rows[0]
        }
        if "uid" in select_fields:
            found["uid"] = NonTensorStack(*(key.split("_")[0] for key in keys))
        return TensorDict(found, batch_size=len(rows))

    def kv_clear(self, keys: list[str], partition_id: str) -> None:
        for key in keys:
            del self.rows[key]

    def kv_batch_put(self, keys: list[str], partition_id: str, fields: Any) -> Any:
        from transfer_queue import KVBatchMeta

        for name in fields.keys():
            for key, value in zip(keys, fields[name].unbind(), strict=True):
                self.rows[key][name] = value.clone()
        return KVBatchMeta(keys, [{} for _ in keys], partition_id, list(fields.keys()))


@pytest.fixture
def trainers() -> ModuleType:
    return engines.load("dapo_trainer.verl_adapter.trainers")


class Workers:
    def __init__(self) -> None:
        self.asked: list[list[str]] = []

    def compute_log_prob(self, batch: Any) -> Any:
        self.asked.append(batch.keys)
        return batch


def computed(
    trainers: ModuleType, monkeypatch: pytest.MonkeyPatch, rows: Rows, most: int, *, of_rollout: bool = False
) -> tuple[Any, dict[str, float], Workers]:
    """The batch after old log-probs and advantages, the metrics of both, and what the workers were asked for."""
    parts = engines.load("dapo_trainer.verl_adapter.batch_parts")
    monkeypatch.setattr(parts.parts, "__defaults__", (most,))
    for module in (trainers, engines.load("verl.trainer.ppo.v1.trainer_base")):
        monkeypatch.setattr(module, "tq", rows)
    trainer: Any = object.__new__(trainers.Colocated)
    trainer.config, workers = OmegaConf.create(CONFIG), Workers()
    trainer.config.algorithm.rollout_correction.bypass_mode = of_rollout
    trainer._ranks = workers  # they have begun long before
    batch = trainers.KVBatchMeta(partition_id="train", keys=rows.keys, tags=rows.tags)
    metrics: dict[str, Any] = {}
    batch = parts.InParts._compute_old_log_prob(trainer, batch, metrics)
    assert trainer.actor_rollout_wg is workers
    trainers._describe_policy(batch, metrics, of_rollout=of_rollout)
    batch = trainer._compute_advantage(batch, metrics)
    return batch, metrics, workers


SPREAD = ("std", "corr/rollout_is_eff", "pearson", "ppl", "seq")


@pytest.mark.parametrize(
    "masked",
    [
        pytest.param(set(), id="all count"),
        pytest.param({0, 1, 2, 3, 9}, id="a part without a loss"),
        pytest.param(set(range(24)), id="none counts"),
    ],
)
def test_parts_add_up_to_the_whole(trainers: ModuleType, monkeypatch: pytest.MonkeyPatch, masked: set[int]) -> None:
    draw = random.Random(7)
    lengths = [draw.randint(1, 9) for _ in range(24)]
    at_once, in_parts = Rows(lengths, masked), Rows(lengths, masked)
    whole, expected, _ = computed(trainers, monkeypatch, at_once, 10**9)
    batch, found, workers = computed(trainers, monkeypatch, in_parts, 40)
    assert at_once.largest == 24 and (in_parts.largest < 24 or len(masked) == 24)
    assert workers.asked == [at_once.keys], "the workers balance the whole batch among themselves"
    assert (batch.keys, batch.tags, batch.fields) == (whole.keys, whole.tags, whole.fields)
    for key, row in at_once.rows.items():
        assert in_parts.rows[key].keys() == row.keys()
        for name, value in row.items():
            torch.testing.assert_close(in_parts.rows[key][name], value, msg=f"{key} {name}")
    assert found.keys() == expected.keys() and found
    for name in found.keys():
        if not any(word in name for word in SPREAD):
            assert found[name] == pytest.approx(expected[name], rel=1e-4), name


@pytest.mark.parametrize("most", [10**9, 40], ids=["all at once", "in parts"])
def test_log_probs_of_the_rollout_need_no_pass(
    trainers: ModuleType, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """Where the trainer's are the same, so are advantages and the policy's probability."""
    lengths, masked = [5, 3, 7, 2, 4, 4, 6, 1], {2}
    rows, passed = Rows(lengths, masked), Rows(lengths, masked)
    for row in passed.rows.values():  # verl takes those that predict the response: all but the last
        row["log_probs"][1:-1] = row["rollout_log_probs"]
    _, found, workers = computed(trainers, monkeypatch, rows, most, of_rollout=True)
    _, expected, _ = computed(trainers, monkeypatch, passed, most)
    assert workers.asked == []
    for key, row in rows.rows.items():
        assert torch.equal(row["old_log_probs"], row["rollout_log_probs"])
        torch.testing.assert_close(row["old_log_probs"], passed.rows[key]["old_log_probs"])
        torch.testing.assert_close(row["advantages"], passed.rows[key]["advantages"])
    assert found["dapo/mean_probability"] == pytest.approx(expected["dapo/mean_probability"])
    counted = [row["rollout_log_probs"][row["response_mask"].bool()] for row in rows.rows.values()]
    assert found["actor/entropy"] == pytest.approx(-torch.cat(counted).mean().item())


@pytest.mark.parametrize(
    ("lengths", "most", "sizes"),
    [
        pytest.param([5] * 16, 10**6, [16], id="all at once"),
        pytest.param([5] * 16, 40, [8, 8], id="two groups a part"),
        pytest.param([5] * 8 + [50] * 4 + [5] * 4, 40, [8, 4, 4], id="a group that is too large is a part"),
    ],
)
def test_parts_are_whole_groups(lengths: list[int], most: int, sizes: list[int], trainers: ModuleType) -> None:
    parts = engines.load("dapo_trainer.verl_adapter.batch_parts")
    keys = [f"p{row % 4}_{row // 4}_0" for row in range(len(lengths))]
    order = sorted(range(len(lengths)), key=lambda row: row % 4)
    tags = [{"response_len": lengths[order.index(row)]} for row in range(len(lengths))]
    found = list(parts.parts(trainers.KVBatchMeta(partition_id="train", keys=keys, tags=tags), most))
    assert [len(part) for part in found] == sizes
    for part in found:
        groups = {key.split("_")[0] for key in part.keys}
        assert len(part) == 4 * len(groups)
    assert sorted(key for part in found for key in part.keys) == sorted(keys)


def test_metrics_are_read_in_small_types(trainers: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = engines.load("dapo_trainer.verl_adapter.batch_parts")
    rows = Rows([3, 5], masked={1})
    monkeypatch.setattr(
        parts,
        "_read_for_metrics",
        lambda **_: rows.kv_batch_get(rows.keys, "", ["responses", "response_mask", "rm_scores"]),
    )
    data = parts._compact()
    padded = data.to_padded_tensor()
    assert data["responses"].offsets().diff().tolist() == [3, 5]
    assert (padded["responses"].dtype, padded["response_mask"].dtype) == (torch.uint8, torch.bool)
    assert padded["response_mask"].sum(-1).tolist() == [3, 0]
    assert padded["rm_scores"].sum(-1).tolist() == [1.0, 0.0]


def test_b15_a_trained_batch_is_not_in_the_checkpoint_of_the_queue(
    trainers: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Metrics are those of the batch all the same; verl clears one key afterwards."""
    parts = engines.load("dapo_trainer.verl_adapter.batch_parts")
    rows = Rows([3, 5, 4, 2], masked={1})
    monkeypatch.setattr(parts, "tq", rows)
    monkeypatch.setattr(parts, "_read_for_metrics", lambda **_: rows.kv_batch_get(rows.keys, "", parts.FOR_METRICS))
    expected = parts._compact()
    batch = trainers.KVBatchMeta(partition_id="train", keys=list(rows.keys), tags=rows.tags)
    parts.take_out(batch)
    assert batch.keys == [*rows.rows] and len(rows.rows) == 1 and len(batch.tags) == 4
    data = parts._compact()
    assert data.keys() == expected.keys()
    for name in data.keys():
        torch.testing.assert_close(data[name].values(), expected[name].values())
    assert not parts._taken_out


def test_b15_all_that_verl_reads_for_metrics_is_kept(trainers: ModuleType) -> None:
    parts = engines.load("dapo_trainer.verl_adapter.batch_parts")
    source = textwrap.dedent(inspect.getsource(parts.PPOTrainer._compute_metrics))
    [fields] = [
        ast.literal_eval(node.value)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "fields"
    ]
    assert fields == list(parts.FOR_METRICS)


@pytest.mark.parametrize(
    ("override", "again"),
    [
        pytest.param({}, False, id="as composed"),
        pytest.param({"trainer.rollout_data_dir": "/x"}, True, id="responses are written to files"),
        pytest.param({"actor_rollout_ref.rollout.moe_load_balance_metrics_interval": 5}, True, id="experts"),
        pytest.param({"actor_rollout_ref.model.mtp.enable_rollout": True}, True, id="drafts"),
    ],
)
def test_b15_a_batch_that_verl_reads_again_stays(override: dict[str, Any], again: bool) -> None:
    parts = engines.load("dapo_trainer.verl_adapter.batch_parts")
    config = _defaults().copy()
    for key, value in override.items():
        OmegaConf.update(config, key, value, force_add=True)
    assert parts.reads_batch_again(config) is again
