"""From judged responses to advantages and loss: our queue rows through verl's own advantage, against a plain mean."""

from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import Any

import engines
import numpy
import pytest
import torch

from dapo_trainer.rewards.scorer import Scored
from dapo_trainer.rewards.verdict import Verdict, failed, right_or_wrong

TOKENS, END = 4, 2


@pytest.fixture(scope="module")
def loop() -> ModuleType:
    engines.load("verl.trainer.ppo.v1")
    return engines.load("dapo_trainer.verl_adapter.agent_loop")


def answer(loop: ModuleType, mark: str, count_failures: bool = False, penalty: float = 0.0) -> Any:
    """`+` right, `-` wrong, `x` a check that failed; a capital `P` or `M` is one that is cut off."""
    from dapo_trainer.verl_adapter.group_server import Response

    verdict = failed("hung") if mark == "x" else right_or_wrong(mark in "+P", None)
    scored = Scored(verdict, verdict.score + penalty, verdict.failure is None or count_failures)
    return loop.JudgedResponse(
        Response([5] * TOKENS, [-0.5] * TOKENS, True, (0, 0)), "", scored, truncated=mark in "PM"
    )


def rows(loop: ModuleType, marks: str, uid: str = "a", filtered: bool = True, **more: Any) -> tuple[Any, list[Any]]:
    """The outcome and queue rows of a group, one mark a response."""
    manager = object.__new__(loop.GroupAgentLoopManager)
    manager._settings = {"overlong": {"filter": filtered}}
    answers = [answer(loop, mark, **more) for mark in marks]
    members = manager._members({"uid": uid, "global_steps": 1}, [1, 2, 3], answers)
    return loop._outcome(uid, answers, members), members


def advantages(members: list[Any]) -> torch.Tensor:
    """[responses, tokens], as verl's trainer computes them from the queue."""
    from verl.protocol import DataProto
    from verl.trainer.ppo.v1.utils import compute_advantage_for_multi_trajectories

    def stacked(name: str) -> torch.Tensor:
        return torch.stack([member["fields"][name] for member in members])

    data = DataProto.from_dict(
        {"token_level_rewards": stacked("rm_scores"), "response_mask": stacked("response_mask")},
        {"uid": numpy.array([member["fields"]["uid"] for member in members], dtype=object)},
    )
    keys = [member["key"] for member in members]
    made: torch.Tensor = compute_advantage_for_multi_trajectories(data, keys, "grpo").batch["advantages"]
    return made


def plain(rewards: list[float]) -> list[float]:
    """Equation 9, written out: with the sample's deviation, which verl takes."""
    mean = sum(rewards) / len(rewards)
    deviation = (sum((r - mean) ** 2 for r in rewards) / (len(rewards) - 1)) ** 0.5
    return [(r - mean) / (deviation + 1e-6) for r in rewards]


def assert_advantages(members: list[Any], wanted: list[float]) -> None:
    expected = torch.tensor(wanted)[:, None].expand(-1, TOKENS)
    torch.testing.assert_close(advantages(members), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("marks", ["+---", "++--", "+++-", "+-", "-++-+--+"])
def test_a_group_is_compared_with_itself(loop: ModuleType, marks: str) -> None:
    outcome, members = rows(loop, marks)
    assert outcome.correct == marks.count("+")
    assert_advantages(members, plain([1.0 if mark == "+" else -1.0 for mark in marks]))


def test_groups_do_not_see_each_other(loop: ModuleType) -> None:
    members = rows(loop, "+---", "a")[1] + rows(loop, "+++-", "b")[1]
    assert_advantages(members, plain([1, -1, -1, -1]) + plain([1, 1, 1, -1]))


def test_a_failed_check_is_left_out_of_mean_deviation_and_loss(loop: ModuleType) -> None:
    outcome, members = rows(loop, "+x-x")
    assert [member["key"] for member in members] == ["a_0_0", "a_2_0"], "there is no row to train on"
    assert (outcome.correct, outcome.rewards, outcome.failures) == (1, (1.0, -1.0), 2)
    assert_advantages(members, plain([1.0, -1.0]))
    made_up = plain([1.0, -1.0, -1.0, -1.0])
    assert abs(advantages(members)[0, 0].item() - made_up[0]) > 0.5, "what a made-up -1 would have done"


def test_unless_the_job_counts_it_as_wrong(loop: ModuleType) -> None:
    outcome, members = rows(loop, "+x-x", count_failures=True)
    assert (outcome.rewards, outcome.failures, outcome.kind) == ((1.0, -1.0, -1.0, -1.0), 2, "mixed")
    assert_advantages(members, plain([1.0, -1.0, -1.0, -1.0]))


@pytest.mark.parametrize(
    ("marks", "kind"),
    [
        pytest.param("+x+x", "all_right", id="what counts is all right"),
        pytest.param("x-x-", "all_wrong", id="what counts is all wrong"),
        pytest.param("xxxx", "lost", id="nothing counts"),
        pytest.param("+xxx", "lost", id="one is no group"),
        pytest.param("+x-x", "mixed", id="two are"),
    ],
)
def test_a_group_is_kept_by_what_counts(loop: ModuleType, marks: str, kind: str) -> None:
    assert rows(loop, marks)[0].kind == kind


def test_why_one_response_is_no_group(loop: ModuleType) -> None:
    """verl compares a single response with nothing: its bare reward becomes the advantage."""
    assert_advantages(rows(loop, "+xxx")[1], [1.0])


def test_a_truncated_response_counts_in_the_mean_and_not_in_the_loss(loop: ModuleType) -> None:
    outcome, members = rows(loop, "+-M-")
    assert outcome.truncated == 1 and outcome.kind == "mixed"
    wanted = plain([1.0, -1.0, -1.0, -1.0])
    wanted[2] = 0.0  # masked: no token of it is trained on
    assert_advantages(members, wanted)
    assert [int(member["fields"]["response_mask"].sum()) for member in members] == [TOKENS, TOKENS, 0, TOKENS]
    assert [int(member["fields"]["loss_mask"].sum()) for member in members] == [TOKENS, TOKENS, 0, TOKENS]


@pytest.mark.parametrize(
    ("tokens", "cut"),
    [
        pytest.param([5] * (TOKENS - 1), False, id="one below the limit, ended in another way"),
        pytest.param([5] * (TOKENS - 1) + [END], False, id="ended with its last token"),
        pytest.param([5] * TOKENS, True, id="at the limit, not ended"),
        pytest.param([END] + [5] * (TOKENS - 1), True, id="an end that was passed over"),
    ],
)
def test_what_the_filter_takes_for_cut_off(loop: ModuleType, tokens: list[int], cut: bool) -> None:
    from dapo_trainer.verl_adapter.group_server import Response

    manager = object.__new__(loop.GroupAgentLoopManager)
    manager._config = SimpleNamespace(response_length=TOKENS)
    manager._tokenizer = SimpleNamespace(eos_token_id=END)
    assert manager._truncated(Response(tokens, [-0.5] * len(tokens), True, (0, 0))) is cut


def test_without_the_filter_it_is_trained_on(loop: ModuleType) -> None:
    assert_advantages(rows(loop, "+-M-", filtered=False)[1], plain([1.0, -1.0, -1.0, -1.0]))


def test_the_length_penalty_is_part_of_the_reward_and_not_of_what_is_right(loop: ModuleType) -> None:
    short, long = answer(loop, "+"), answer(loop, "+", penalty=-0.75)
    outcome = loop._outcome("a", [short, long], [])
    assert (outcome.correct, outcome.rewards, outcome.kind) == (2, (1.0, 0.25), "all_right")


def test_the_reward_lies_on_the_last_token(loop: ModuleType) -> None:
    [member, _] = rows(loop, "+-")[1]
    assert member["fields"]["rm_scores"].tolist() == [0.0] * (TOKENS - 1) + [1.0]


def test_the_log_probabilities_of_all_that_counts_are_added_up_trained_on_or_not(loop: ModuleType) -> None:
    for marks, counted in (("++++", 4), ("+x-M", 3), ("xx", 0)):
        outcome, _ = rows(loop, marks)
        assert (outcome.nll, sum(outcome.lengths)) == (counted * TOKENS * 0.5, counted * TOKENS)


def test_what_a_reward_said_besides_is_kept_with_the_sample(loop: ModuleType) -> None:
    plain = answer(loop, "+")
    said = replace(plain, scored=replace(plain.scored, verdict=Verdict(1.0, True, details={"steps": 3, "note": "ok"})))
    assert [one.sample("1+1?", "2").details for one in (plain, said)] == ["", '{"steps": 3, "note": "ok"}']
