"""The replay buffer where a step is trained on in mini-batches, out of a window of prompts that runs ahead."""

from functools import partial
from statistics import fmean
from types import SimpleNamespace
from typing import Any

import engines
import pytest
from group_stage import TRAIN, Build, G, Stage, build_stage, groups_of
from omegaconf import OmegaConf

from dapo_core.errors import SamplingExhaustedError, StoppedError
from dapo_trainer.groups.dynamic_sampling import Kind
from dapo_trainer.verl_adapter.group_buffer import NothingLeft


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Build:
    return partial(build_stage, monkeypatch)


class TestSeparated:
    def test_rejections_are_replaced_one_for_one_across_mini_batches(self, stage: Build) -> None:
        at = stage("dapo_separated", answers=[2, 0, 2, 0, 0, 2, 0, 2, 2, 2, 0, 2], then=2)
        at.buffer.begin_step(1, 4)
        at.rollout(8)  # a batch, and one ahead
        for _ in range(2):
            assert len(groups_of(at.buffer.sample(1, TRAIN, 2)[0])) == 2
        settle(at)
        kept = at.rollout.made - rejected(at)
        owed = at.buffer._owed
        assert kept + owed == 8, "what is trained on or waits, and what is still to be replaced, are the window"

    def test_surplus_stays_for_the_next_mini_batch(self, stage: Build) -> None:
        at = stage("dapo_separated", then=2)
        at.buffer.begin_step(1, 4)
        at.rollout(8)
        taken = [uid for _ in range(4) for uid in groups_of(at.buffer.sample(1, TRAIN, 2)[0])]
        assert sorted(taken) == [f"p{i}" for i in range(8)] and at.buffer.tally.dropped == 0

    def test_replacements_cut_off_by_the_cap_are_made_up_in_the_next_step(self, stage: Build) -> None:
        at = stage("dapo_separated", answers=[0, 0, 0, 2, 2], then=2, cap=1)
        at.buffer.begin_step(1, 4)
        at.rollout(5)
        assert len(groups_of(at.buffer.sample(1, TRAIN, 2)[0])) == 2
        assert at.rollout.made == 5 and at.buffer._owed == 1, "two of the three are missing in this step's batch"
        at.buffer.begin_step(2, 4)
        at.rollout(1)
        assert len(groups_of(at.buffer.sample(2, TRAIN, 4)[0])) == 4, "a window too small would wait for ever"

    def test_a_partial_batch_does_not_widen_the_window(self, stage: Build) -> None:
        at = stage("dapo_separated", answers=[2, 0, 0, 0], then=0, cap=1)
        at.buffer.begin_step(1, 4)
        at.rollout(4)
        assert groups_of(at.buffer.sample(1, TRAIN, 4)[0]) == ["p0"]
        assert at.buffer._owed == 0

    def test_groups_of_too_old_weights_are_replaced(self, stage: Build) -> None:
        at = stage("dapo_separated", max_staleness=1)
        at.buffer.begin_step(4, 4)
        versions = [3, 2, 1, 1, 0, 2]
        for number, version in enumerate(versions):
            at.rollout(1)
            for tag in at.rollout.outcomes[number].tags:
                tag["min_global_steps"] = version
        asked = 0
        generate = at.rollout.generate

        def fresh(uid: str, correct: int | None) -> Any:
            nonlocal asked
            outcome = generate(uid, correct)
            asked += 1
            for tag in outcome.tags:
                tag["min_global_steps"] = 3
            return outcome

        at.rollout.generate = fresh  # type: ignore[method-assign]
        taken = groups_of(at.buffer.sample(4, TRAIN, 4)[0])
        assert len(taken) == 4 and not {"p2", "p3", "p4"} & set(taken)
        assert (at.buffer.tally.stale, asked) == (3, 3), "each is replaced by one"
        assert not [key for key in at.queue.items if key.split("_")[0] in {"p2", "p3", "p4"}]

    def test_b1_the_first_mini_batch_is_not_that_of_the_shortest(self, stage: Build) -> None:
        at = stage("dapo_separated")
        at.buffer.begin_step(1, 64)
        uids = [f"p{number}" for number in range(64)]  # in the order in which they finish
        at.session.groups.submit(TRAIN, uids)
        for uid in uids:
            at.queue.items[uid] = {"is_prompt": True, "status": "finished"}
            at.session.groups.finish(TRAIN, [at.rollout.generate(uid, 2)])
        first = groups_of(at.buffer.sample(1, TRAIN, 16)[0])
        assert 16 < fmean(int(uid[1:]) for uid in first) < 48, "of the first 16 to finish it would be 7.5"

    def test_b10_a_stop_does_not_come_between_the_updates_of_a_step(self, stage: Build) -> None:
        at = stage("dapo_separated")
        at.buffer.begin_step(1, 4)
        at.rollout(8)
        at.buffer.sample(1, TRAIN, 2)
        at.session.stop.set()
        assert len(groups_of(at.buffer.sample(1, TRAIN, 2)[0])) == 2
        at.buffer.begin_step(2, 4)
        with pytest.raises(StoppedError):
            for _ in range(2):
                at.buffer.sample(2, TRAIN, 4)


def settle(at: Stage) -> None:
    """Take in what is under way without asking for more."""
    while at.session.groups.in_flight(TRAIN):
        at.buffer._owed += at.buffer._sort(at.buffer._policy(), at.session.groups.take(TRAIN, 1))
    at.buffer._owed += at.buffer._sort(at.buffer._policy(), at.session.groups.take(TRAIN, 0))


def rejected(at: Stage) -> int:
    groups = at.buffer.tally.groups
    return groups[Kind.ALL_WRONG] + groups[Kind.ALL_RIGHT] + groups[Kind.LOST]


class TestLaterMiniBatches:
    """A separate pool trains a step in mini-batches; the prompts may run out before the last of them."""

    def test_the_step_ends_early_once_something_was_trained_on(self, stage: Build) -> None:
        at = stage("dapo_separated", answers=[2, 0, 0, 0], then=0, cap=1)
        at.buffer.begin_step(3, 4)
        at.rollout(4)
        assert groups_of(at.buffer.sample(3, TRAIN, 1)[0]) == ["p0"]
        for _ in range(3):
            with pytest.raises(NothingLeft):
                at.buffer.sample(3, TRAIN, 1)
        assert [event[0] for event in at.news.events] == ["SamplingExhausted"], "reported once per step"
        assert at.news.events[0][1].startswith("After 4 prompts (1 batches) only 1 of 4 groups have both correct and")
        assert at.buffer._owed == 0 and at.buffer.tally.trained == 1

    def test_nothing_at_all_ends_the_run(self, stage: Build) -> None:
        at = stage("dapo_separated", then=0, cap=1)
        at.buffer.begin_step(1, 4)
        at.rollout(4)
        with pytest.raises(SamplingExhaustedError, match="only 0 of 4 groups"):
            at.buffer.sample(1, TRAIN, 1)

    @pytest.mark.parametrize("choice", ["Suspend", "Fail"])
    def test_other_choices_end_the_run_there_too(self, stage: Build, choice: str) -> None:
        at = stage("dapo_separated", answers=[2, 0, 0, 0], then=0, cap=1, on_exhausted=choice)
        at.buffer.begin_step(1, 4)
        at.rollout(4)
        with pytest.raises(SamplingExhaustedError, match="only 1 of 4 groups"):
            at.buffer.sample(1, TRAIN, 1)

    def test_verls_own_step_goes_on_with_the_mini_batches_it_has(self, stage: Build) -> None:
        """`PPOTrainer.step` and `_step_once` as they are, with the engines taken out."""
        at = stage("dapo_separated", answers=[1, 0, 3, 0], then=0, cap=1)
        trainer = stripped_trainer(at, batch=4)
        metrics: dict[str, Any] = {}
        batch = trainer.step(metrics, {})
        assert sorted(groups_of(batch)) == ["p0", "p2"] and len(batch.tags) == 2 * G
        assert sorted(trainer.updated) == [["p0"], ["p2"]], "two updates, and none of nothing"
        assert metrics["actor/pg_loss"] == 0.5
        assert at.buffer.tally.trained == 2 and at.buffer.tally.generated == 4


def stripped_trainer(at: Stage, batch: int) -> Any:
    """A Separated trainer that samples from `at` and notes its updates, a group a mini-batch."""
    trainers = engines.load("dapo_trainer.verl_adapter.trainers")

    class Stripped(trainers.Separated):  # type: ignore[name-defined]
        def __init__(self) -> None:
            actor = {"ppo_mini_batch_size": 1}
            rollout = {"temperature": 1.0}
            self.config = OmegaConf.create(
                {
                    "data": {"train_batch_size": batch},
                    "actor_rollout_ref": {"actor": actor, "rollout": rollout},
                    "trainer": {"critic_warmup": 0},
                }
            )
            self.global_steps, self.total_training_steps, self.parameter_sync_step = 1, 1, batch
            self.replay_buffer, self.hybrid_rollout_config = at.buffer, SimpleNamespace(enable_switch=False)
            self.reward_loop_manager = SimpleNamespace(reward_loop_worker_handles=[])
            self.use_reference_policy = self.use_critic = False
            self.updated: list[list[str]] = []
            self._step_sample_wait_seconds = 0.0

        def _add_batch_to_generate(self) -> None:
            at.rollout(batch)

        def _balance_batch(self, batch: Any, metrics: Any, **_: Any) -> Any:
            return batch

        _compute_old_log_prob = _compute_advantage = _balance_batch

        def _update_actor(self, batch: Any, metrics: dict[str, Any]) -> Any:
            self.updated.append(groups_of(batch))
            metrics["actor/pg_loss"] = 0.5
            return batch

    return Stripped()
