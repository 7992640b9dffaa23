"""Tokens of a few groups: which are chosen, what of them is read, and which of them were clipped."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import engines
import pytest
import torch
from tensordict import TensorDict

from dapo_trainer.groups.dynamic_sampling import GroupOutcome
from dapo_trainer.groups.group_records import GroupRecords, ScoredGroup, ScoredResponse

LENGTHS = (3, 2)  # of the two responses of every group


@pytest.fixture(scope="module")
def records() -> ModuleType:
    return engines.load("dapo_trainer.verl_adapter.token_records")


@pytest.fixture(scope="module")
def marks() -> ModuleType:
    return engines.load("dapo_trainer.verl_adapter.clip_marks")


def nested(rows: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.nested.as_nested_tensor(list(rows), layout=torch.jagged)


@dataclass
class Queue:
    """TransferQueue's read, of rows whose tokens follow from their keys; `lacks`: fields that the job does not have."""

    lacks: tuple[str, ...] = ()
    read: list[str] = field(default_factory=list)

    def kv_batch_get(self, keys: list[str], partition_id: str, select_fields: list[str]) -> TensorDict:
        if set(select_fields) & set(self.lacks):
            raise ValueError(f"Fields {select_fields} are not there.")
        self.read += keys
        columns = {name: nested([self.row(key, name) for key in keys]) for name in select_fields}
        return TensorDict(columns, batch_size=len(keys))

    def row(self, key: str, name: str) -> torch.Tensor:
        uid, number, _ = key.rsplit("_", 2)
        length = LENGTHS[int(number)]
        ids = torch.arange(length) + 10 * int(number) + 100 * int(uid.removeprefix("p"))
        values = {
            "prompts": torch.tensor([7, 8]),
            "responses": ids,
            "response_mask": torch.tensor([0, *[1] * (length - 1)]),
            "advantages": torch.tensor([0.0, *[1.0 - 2 * int(number)] * (length - 1)]),
        }
        return values.get(name, -ids.float() / 7)


def batch(uids: Sequence[str]) -> Any:
    keys = [f"{uid}_{number}_0" for number in (1, 0) for uid in uids]
    tags: list[dict[str, Any]] = [{} for _ in keys]
    padding = {"is_padding": True}
    return SimpleNamespace(keys=[*keys, "x_0_0"], tags=[*tags, padding], partition_id="train", extra_info={})


def known(uids: Sequence[str]) -> GroupRecords:
    found = GroupRecords()
    responses = (ScoredResponse(1.0, True, False, "{}"), ScoredResponse(-1.0, False, True, "{}"))
    for uid in uids:
        found.scored(ScoredGroup(uid, "math", f"prompt {uid}", "4", responses, 1.0, 2.0))
    return found


def decode(texts: list[list[int]]) -> list[str]:
    return ["".join(f"<{token}>" for token in text) for text in texts]


def test_a_few_groups_are_recorded_in_full(records: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "tq", queue := Queue(lacks=("rollout_is_weights",)))
    tokens = records.TokenRecords(every=5, groups=2)
    tokens.begin_step(5)
    trained = batch([f"p{number}" for number in range(8)])
    tokens.before_update(trained, known([f"p{number}" for number in range(8)]))
    assert len(tokens.uids) == 2 and trained.extra_info == {"recorded_uids": " ".join(tokens.uids)}
    found = tokens.take().responses(decode)
    assert [response.number for response in found] == [0, 1] * 2 and "x_0_0" not in queue.read
    one, other = found[:2]
    number = int(one.uid[1:])
    assert one.token_ids == [100 * number, 100 * number + 1, 100 * number + 2] and one.prompt == f"prompt {one.uid}"
    assert one.pieces == [f"<{token}>" for token in one.token_ids] and one.response == "".join(one.pieces)
    assert one.has_loss == [False, True, True] and (one.advantage, other.advantage) == (1.0, -1.0)
    assert (one.reward, one.correct, other.reward, other.truncated) == (1.0, True, -1.0, True)
    assert one.trainer_log_probs == one.rollout_log_probs == one.entropies
    assert one.rollout_log_probs[1] == round(-(100 * number + 1) / 7, 4) and one.weights == []
    assert tokens.uids == [], "they were taken"


def test_the_same_prompts_are_recorded_at_every_step(records: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "tq", Queue())
    chosen = []
    for uids in (["p1", "p2", "p3", "p4"], ["p4", "p3", "p2", "p1"]):
        tokens = records.TokenRecords(every=1, groups=2)
        tokens.begin_step(1)
        tokens.before_update(batch(uids), known(uids))
        chosen.append(set(tokens.uids))
    assert chosen[0] == chosen[1]


def test_mini_batches_share_the_number_of_groups(records: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "tq", Queue())
    tokens = records.TokenRecords(every=1, groups=3)
    tokens.begin_step(1)
    for uids in (["p1", "p2"], ["p3", "p4"], ["p5"]):
        tokens.before_update(batch(uids), known(uids))
    assert len(tokens.uids) == 3 and set(tokens.uids) > {"p1", "p2"}


def test_one_group_that_is_left_out_is_recorded_as_the_rollout_saw_it(
    records: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "tq", Queue())
    tokens = records.TokenRecords(every=1, groups=2)
    tokens.begin_step(1)
    outcomes = [GroupOutcome("p0", 0, (), ()), *(GroupOutcome(f"p{n}", 0, (), (), keys=(f"p{n}_0_0",)) for n in (1, 2))]
    tokens.leave_out(outcomes, "train", known(["p1"]))
    [found] = tokens.responses(decode)
    assert (found.uid, found.advantage, found.trainer_log_probs, found.clipped) == ("p1", None, [], [])
    assert len(found.rollout_log_probs) == 3


@pytest.mark.parametrize(
    ("every", "groups", "step"),
    [
        pytest.param(0, 2, 5, id="no samples are logged"),
        pytest.param(5, 0, 5, id="no groups are recorded"),
        pytest.param(5, 2, 4, id="a step without samples"),
    ],
)
def test_nothing_is_read_where_nothing_is_recorded(
    records: ModuleType, monkeypatch: pytest.MonkeyPatch, every: int, groups: int, step: int
) -> None:
    monkeypatch.setattr(records, "tq", queue := Queue())
    tokens = records.TokenRecords(every, groups)
    tokens.begin_step(step)
    trained = batch(["p1"])
    tokens.leave_out([GroupOutcome("p2", 0, (), (), keys=("p2_0_0",))], "train", known([]))
    tokens.before_update(trained, known(["p1"]))
    tokens.after_update(None)
    assert queue.read == [] and trained.extra_info == {} and tokens.responses(decode) == []


def test_tokens_of_a_step_are_bounded(records: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "tq", Queue())
    monkeypatch.setattr(records, "MAX_TOKENS", 7)
    tokens = records.TokenRecords(every=1, groups=4)
    tokens.begin_step(1)
    tokens.before_update(batch(["p1", "p2"]), known(["p1", "p2"]))
    assert len(tokens.responses(decode)) == 2


def test_clipped_tokens_come_from_the_rank_that_trained_on_them(
    records: ModuleType, marks: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "tq", queue := Queue())
    worker = SimpleNamespace(__ray_call__=SimpleNamespace(remote=lambda function: function(None)))
    monkeypatch.setattr(records, "ray", SimpleNamespace(get=list))
    tokens = records.TokenRecords(every=1, groups=1)
    tokens.begin_step(1)
    trained = batch(["p3"])
    tokens.before_update(trained, known(["p3"]))
    keys = ["p3_1_0", "p4_0_0", "p3_0_0"]
    verls = engines.load("verl.utils.tensordict_utils")
    micro = verls.list_of_dict_to_tensordict(
        [{"uid": key.split("_")[0], "responses": queue.row(key, "responses")} for key in keys]
    )
    high = torch.tensor([[0, 1, 0], [1, 1, 1], [0, 0, 1]], dtype=torch.bool)
    low = torch.tensor([[1, 0, 0], [0, 0, 0], [0, 1, 0]], dtype=torch.bool)
    marks.note(high, low)
    marks.keep(micro)
    assert marks.take_marks(None) == {}, "nobody asked"
    verls.assign_non_tensor(micro, **trained.extra_info)
    marks.keep(micro)
    assert marks.take_marks(None) == {}, "a pass without a loss"
    marks.note(high, low)
    marks.keep(micro)
    tokens.after_update(SimpleNamespace(workers=[worker]))
    assert [response.clipped for response in tokens.responses(decode)] == [[0, -1, 1], [-1, 1]]
    assert marks.take_marks(None) == {}


def test_the_loss_notes_what_it_clips(marks: ModuleType) -> None:
    losses = engines.load("dapo_trainer.verl_adapter.policy_loss")
    from verl.workers.config import FSDPActorConfig

    config = FSDPActorConfig(
        strategy="fsdp2", rollout_n=1, ppo_micro_batch_size_per_gpu=1, clip_ratio_low=0.2, clip_ratio_high=0.28
    )
    old, new = torch.zeros(1, 3), torch.log(torch.tensor([[2.0, 1.0, 2.0]]))
    mask = torch.tensor([[1.0, 1.0, 0.0]])
    losses.dapo_policy_loss(old, new, torch.ones(1, 3), mask, "token-mean", config)
    [(high, low)] = marks._of_loss
    assert high.tolist() == [[True, False, False]] and not low.any(), "a masked token is not clipped"
    marks._of_loss.clear()


def test_a_failure_ends_the_recording_and_not_the_training(
    records: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(**_: Any) -> None:
        raise RuntimeError("no queue")

    monkeypatch.setattr(records, "tq", SimpleNamespace(kv_batch_get=broken))
    tokens = records.TokenRecords(every=1, groups=1)
    for step in (1, 2):
        tokens.begin_step(step)
        tokens.before_update(batch(["p1"]), known(["p1"]))
        tokens.after_update(None)
    assert tokens.groups == 0 and tokens.responses(decode) == []
