"""The replay buffer by groups, step by step: what is taken, carried, dropped, given up and restored."""

import random
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import engines
import pytest
from group_stage import TRAIN, Build, G, Items, Stage, build_stage, groups_of

from dapo_core.errors import SamplingExhaustedError, StoppedError
from dapo_trainer.groups.dynamic_sampling import GroupOutcome, Kind
from dapo_trainer.verl_adapter.group_buffer import stored
from dapo_trainer.verl_adapter.session import GroupTracker


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Build:
    return partial(build_stage, monkeypatch)


def test_the_batch_is_exactly_the_groups_that_teach(stage: Build) -> None:
    at = stage(answers=[0, 2, G, 1, None, 3, 2, 1])
    batch = at.step(4)
    assert sorted(groups_of(batch)) == ["p1", "p3", "p5", "p6"]
    assert len(batch.keys) == 4 * G and [tag["of"] for tag in batch.tags] == [key[:2] for key in batch.keys]
    # verl clears the responses it trained on; nothing else may stay but what is carried.
    carried = {key for key in at.queue.items if key.split("_")[0] not in groups_of(batch)}
    assert {key.split("_")[0] for key in carried} == {f"p{i}" for i in range(7, 7 + at.buffer.carried)}


def test_rejected_groups_are_refilled_until_the_batch_is_full(stage: Build) -> None:
    at = stage(answers=[0] * 25)
    assert len(groups_of(at.step(4))) == 4
    assert at.rollout.made >= 29
    assert at.buffer.tally.generated == at.rollout.made
    assert not at.news.events


def test_surplus_is_carried_into_the_next_step_and_not_beyond_one_batch(stage: Build) -> None:
    at = stage(answers=[0] * 9)
    first = at.step(4)
    surplus = at.rollout.made - 9 - 4
    assert at.buffer.carried + at.buffer.tally.dropped == surplus
    assert at.buffer.carried == min(surplus, 4) > 0
    at.queue.kv_clear(first.keys, TRAIN)
    made = at.rollout.made
    second = at.step(4, number=2)
    carried = {f"p{number}" for number in range(made - surplus, made)}
    assert carried < {*groups_of(second)}, "the oldest first"
    assert not {*groups_of(first)} & {*groups_of(second)}
    assert at.buffer.tally.step == 2 and at.buffer.tally.generated == at.rollout.made - made


def test_dropped_surplus_leaves_the_queue(stage: Build) -> None:
    at = stage(answers=[0] * 8, surplus="Discard")
    batch = at.step(4)
    at.buffer.commit()
    at.queue.kv_clear(batch.keys, TRAIN)
    assert at.rollout.made == 16 and at.buffer.tally.dropped == 4
    assert at.buffer.carried == 0 and not at.queue.items


class TestOrder:
    """A step's batch is a sample of the prompts that were asked for, and its mini-batches are samples of the batch."""

    def late_and_long(self, at: Stage, batch: int) -> list[str]:
        """A step whose longest responses finish last: its rows in the order that verl cuts mini-batches from."""
        at.buffer.begin_step(1, batch)
        uids = [f"p{number}" for number in range(batch)]
        at.session.groups.submit(TRAIN, uids)
        lengths = [random.Random(number).lognormvariate(7, 1) for number in range(batch)]
        for number in sorted(range(batch), key=lambda number: lengths[number]):
            at.queue.items[uids[number]] = {"is_prompt": True, "status": "finished"}
            made = at.rollout.generate(uids[number], 2)
            tags = tuple({"seq_len": lengths[number], "of": uids[number]} for _ in made.keys)
            at.session.groups.finish(TRAIN, [replace(made, tags=tags)])
        handed, _ = at.buffer.sample(1, TRAIN, batch)
        self.lengths = [tag["seq_len"] for tag in handed.tags]
        return list(handed.keys)

    def test_b1_mini_batches_are_not_sorted_by_length(self, stage: Build) -> None:
        self.late_and_long(stage(), 512)
        size = len(self.lengths) // 16
        means = [fmean(self.lengths[start : start + size]) for start in range(0, len(self.lengths), size)]
        half = len(self.lengths) // 2
        assert fmean(self.lengths[:half]) == pytest.approx(fmean(self.lengths[half:]), rel=0.1)
        assert max(means) < 2 * min(means), "in the order of completion the last is more than 20 times the first"

    def test_the_order_follows_from_seed_and_step(self, stage: Build) -> None:
        assert self.late_and_long(stage(), 32) == self.late_and_long(stage(), 32)

    def test_groups_are_chosen_as_they_were_asked_for_and_not_as_they_finish(self, stage: Build) -> None:
        at = stage(surplus="Discard")
        at.buffer.begin_step(1, 2)
        at.session.groups.submit(TRAIN, ["p0", "p1", "p2", "p3"])
        for uid in ("p3", "p2", "p1", "p0"):
            at.queue.items[uid] = {"is_prompt": True, "status": "finished"}
            at.session.groups.finish(TRAIN, [at.rollout.generate(uid, 2)])
        assert sorted(groups_of(at.buffer.sample(1, TRAIN, 2)[0])) == ["p0", "p1"]


def test_the_acceptance_rate_survives_a_restart(stage: Build, tmp_path: Path) -> None:
    at = stage(answers=[0, 2] * 64, surplus="Discard")
    at.step(32)
    at.buffer.save(tmp_path)
    again = stage()
    assert again.buffer.begin_step(2, 32) == 32, "without a checkpoint every group is expected to be kept"
    again.buffer.recall(tmp_path)
    assert again.buffer.begin_step(2, 32) == 64
    again.buffer.recall(tmp_path / "of an older version")
    assert again.buffer.begin_step(2, 32) == 64


class TestCap:
    def test_train_partial_trains_on_what_there_is(self, stage: Build) -> None:
        at = stage(answers=[2, 0, G, 3], then=0, cap=3)
        assert sorted(groups_of(at.step(4, number=7))) == ["p0", "p3"]
        assert at.rollout.made == at.buffer.tally.generated == 12
        [(reason, message, step)] = at.news.events
        assert (reason, step) == ("SamplingExhausted", 7)
        assert message == (
            "After 12 prompts (3 batches) only 2 of 4 groups have both correct and wrong responses "
            "(9 all wrong, 1 all right, 0 lost); training on these."
        )

    @pytest.mark.parametrize("choice", ["TrainPartial", "Suspend", "Fail"])
    def test_nothing_to_train_on_ends_the_run(self, stage: Build, choice: str) -> None:
        at = stage(then=G, cap=2, on_exhausted=choice)
        with pytest.raises(
            SamplingExhaustedError, match=r"After 8 prompts .* only 0 of 4 .* raise maxGenerationBatches\."
        ):
            at.step(4)
        assert at.rollout.made == 8

    @pytest.mark.parametrize("choice", ["Suspend", "Fail"])
    def test_a_part_is_not_trained_on_unless_allowed(self, stage: Build, choice: str) -> None:
        at = stage(answers=[2, 2, 2], then=0, cap=2, on_exhausted=choice)
        with pytest.raises(SamplingExhaustedError, match="only 3 of 4"):
            at.step(4)

    def test_groups_that_are_all_lost_end_the_run_without_dynamic_sampling_too(self, stage: Build) -> None:
        at = stage(then=None, cap=2, enabled=False)
        with pytest.raises(
            SamplingExhaustedError, match=r"0 of 4 groups could be scored .* 8 lost\)\. See the trainer's log"
        ):
            at.step(4)

    def test_no_cap(self, stage: Build) -> None:
        at = stage(answers=[0] * 200, cap=0)
        assert len(groups_of(at.step(2))) == 2


def test_groups_are_kept_by_the_spread_of_their_scores(stage: Build) -> None:
    at = stage(answers=[0, 2, G, 2], filter_by="spread")
    assert sorted(groups_of(at.step(2))) == ["p1", "p3"]
    assert at.buffer.filters_by_spread and at.buffer.tally.rejected == 2


def test_a_starved_step_says_what_its_groups_lack(stage: Build) -> None:
    at = stage(answers=[2], then=0, cap=2, filter_by="spread")
    at.step(2)
    assert "1 of 2 groups have responses of different scores" in at.news.events[0][1]


def test_without_dynamic_sampling_every_scored_group_is_trained_on(stage: Build) -> None:
    at = stage(answers=[0, G, 2, 1], enabled=False)
    assert sorted(groups_of(at.step(4))) == ["p0", "p1", "p2", "p3"]
    assert at.rollout.made == 4


class TestRestore:
    def restored(self, at: Stage) -> Items:
        """A queue as a checkpoint brings it back: one group of each kind, one under way, one orphan."""
        items: Items = {}
        for uid, correct in (("good", 2), ("wrong", 0), ("right", G)):
            outcome = replace(at.rollout.generate(uid, correct), tags=())
            saved = {**stored(outcome), "rewards": list(outcome.rewards), "lengths": list(outcome.lengths)}
            items[uid] = {"is_prompt": True, "status": "finished", "outcome": saved}
        at.queue.items |= items
        at.queue.items["open"] = {"is_prompt": True, "status": "pending"}
        at.queue.items["orphan_0_0"] = {"seq_len": 3}
        return at.queue.items

    def test_finished_groups_are_taken_up_and_orphans_cleared(self, stage: Build) -> None:
        at = stage("dapo_separated")
        self.restored(at)
        at.session.groups.submit(TRAIN, ["open"])
        at.buffer.restore()
        assert at.buffer.carried == 1
        assert {key.split("_")[0] for key in at.queue.items} == {"good", "open"}
        at.buffer.begin_step(1, 1)
        batch, _ = at.buffer.sample(1, TRAIN, 1)
        assert sorted(batch.keys) == [f"good_{i}_0" for i in range(G)]
        assert batch.tags[0] == {"seq_len": 5, "of": "good"}
        at.buffer.commit()
        assert "good" not in at.queue.items and "good_0_0" in at.queue.items

    def test_rejected_ones_are_replaced_in_the_window(self, stage: Build) -> None:
        at = stage("dapo_separated")
        self.restored(at)
        at.buffer.restore()
        assert at.buffer._owed == 2

    def test_a_prompt_sent_out_again_is_not_taken_twice(self, stage: Build) -> None:
        at = stage("dapo_separated")
        self.restored(at)
        at.session.groups.submit(TRAIN, ["good"])  # it finished between verl's second try and this call
        at.session.groups.finish(TRAIN, [at.rollout.generate("good", 1)])
        at.buffer.restore()
        assert at.buffer.carried == 0
        at.buffer.begin_step(1, 1)
        assert groups_of(at.buffer.sample(1, TRAIN, 1)[0]) == ["good"]

    def test_an_empty_queue(self, stage: Build) -> None:
        at = stage()
        at.buffer.restore()
        assert at.buffer.carried == 0


def test_a_stop_is_answered_while_waiting(stage: Build) -> None:
    at = stage()
    at.buffer.begin_step(1, 2)
    at.session.groups.submit(TRAIN, ["never"])
    threading.Timer(0.05, at.session.stop.set).start()
    with pytest.raises(StoppedError):
        at.buffer.sample(1, TRAIN, 2)


class TestStopAmidAStep:
    """Until the groups change the policy, a stop saves the step before: none of them may be lost, or trained twice."""

    def test_before_log_probs_the_groups_are_kept(self, stage: Build) -> None:
        at = stage(answers=[0])
        batch = at.step(2)
        at.session.stop.set()
        with pytest.raises(StoppedError):
            at.buffer.stop_if_asked()
        again = stage()
        again.queue.items = self._as_saved(at)
        again.buffer.restore()
        assert {*groups_of(again.step(2))} == {*groups_of(batch)} and again.rollout.made == 0

    def test_after_them_the_prompts_are_sent_out_again(self, stage: Build) -> None:
        at = stage(surplus="Discard")
        batch = at.step(2)
        at.session.stop.set()
        with pytest.raises(StoppedError):
            at.buffer.commit()
        assert {*at.queue.items} == {*groups_of(batch)}
        assert {tag["status"] for tag in at.queue.items.values()} == {"pending"}

    def test_between_mini_batches_it_waits_for_the_end_of_the_step(self, stage: Build) -> None:
        at = stage("dapo_separated")
        at.buffer.begin_step(1, 4)
        at.rollout(4)
        at.buffer.sample(1, TRAIN, 2)
        at.buffer.commit()
        at.session.stop.set()
        second, _ = at.buffer.sample(1, TRAIN, 2)
        at.buffer.stop_if_asked()
        at.buffer.commit()
        assert {*at.queue.items} >= {*second.keys} and not {*at.queue.items} & {*groups_of(second)}

    @pytest.mark.parametrize("asked_in", ["_compute_old_log_prob", "_update_actor"])
    def test_the_trainer_asks_before_either(self, stage: Build, asked_in: str) -> None:
        trainers = engines.load("dapo_trainer.verl_adapter.trainers")
        at = stage()
        done: list[Any] = []

        class Verl:
            def _done(self, batch: Any, metrics: dict[str, Any]) -> Any:
                done.append(batch)

            _compute_old_log_prob = _update_actor = _done

        trainer = type("Trainer", (trainers._Hooks, Verl), {})()
        trainer.replay_buffer, batch = at.buffer, at.step(2)
        at.session.stop.set()
        with pytest.raises(StoppedError):
            getattr(trainer, asked_in)(batch, {})
        assert not done

    @staticmethod
    def _as_saved(at: Stage) -> Items:
        """The queue with the outcomes that the agent loop stores in the prompts' tags."""
        for outcome in at.rollout.outcomes:
            if outcome.uid in at.queue.items:
                saved = {**stored(outcome), "rewards": list(outcome.rewards), "lengths": list(outcome.lengths)}
                at.queue.items[outcome.uid] |= {"status": "finished", "outcome": saved}
        return at.queue.items


def test_a_crash_of_the_rollout_wakes_the_trainer(stage: Build) -> None:
    at = stage()
    at.buffer.begin_step(1, 2)
    at.session.groups.submit(TRAIN, ["never"])
    threading.Timer(0.05, at.session.groups.fail, [RuntimeError("the engine died")]).start()
    with pytest.raises(RuntimeError, match="the engine died"):
        at.buffer.sample(1, TRAIN, 2)


class TestGroupTracker:
    def test_partitions_are_apart(self) -> None:
        tracker = GroupTracker()
        tracker.submit("train", ["a", "b"])
        tracker.submit("val", ["c"])
        tracker.finish("val", [GroupOutcome("c", 0, (), ())])
        assert tracker.take("train", 0) == [] and [o.uid for o in tracker.take("val", 0)] == ["c"]
        assert (tracker.in_flight("train"), tracker.in_flight("val")) == (2, 0)
        assert tracker.uids_in_flight("train") == {"a", "b"} and tracker.uids_in_flight("val") == set()

    def test_a_group_is_in_flight_until_it_is_taken(self) -> None:
        tracker = GroupTracker()
        tracker.submit("train", ["a"])
        tracker.finish("train", [GroupOutcome("a", 0, (), ())])
        assert tracker.in_flight("train") == 1, "else its place would be filled twice"
        tracker.take("train", 0)
        assert tracker.in_flight("train") == 0

    def test_whoever_waits_is_woken_at_once(self) -> None:
        tracker = GroupTracker()
        tracker.submit("train", ["a"])
        threading.Timer(0.05, tracker.finish, ["train", [GroupOutcome("a", 0, (), ())]]).start()
        assert [o.uid for o in tracker.take("train", 30)] == ["a"]  # the test's own limit would be over before

    def test_a_failure_reaches_every_later_call(self) -> None:
        tracker = GroupTracker()
        tracker.fail(ValueError("gone"))
        for _ in range(2):
            with pytest.raises(ValueError, match="gone"):
                tracker.take("train", 30)

    def test_many_threads_lose_nothing(self) -> None:
        tracker, taken = GroupTracker(), set[str]()
        uids = [f"{i}" for i in range(400)]
        tracker.submit("train", uids)
        workers = [
            threading.Thread(
                target=lambda part: [tracker.finish("train", [GroupOutcome(u, 0, (), ())]) for u in part],
                args=[uids[i::4]],
            )
            for i in range(4)
        ]
        for worker in workers:
            worker.start()
        while len(taken) < len(uids):
            taken |= {outcome.uid for outcome in tracker.take("train", 5)}
        for worker in workers:
            worker.join()
        assert tracker.in_flight("train") == 0 and taken == set(uids)


def test_what_is_left_of_a_group_must_be_two_responses_to_compare() -> None:
    assert GroupOutcome("a", 1, (1.0,), (5,), failures=G - 1).kind is Kind.LOST
    assert GroupOutcome("a", 1, (1.0, -1.0), (5, 5), failures=G - 2).kind is Kind.MIXED
    assert GroupOutcome("a", 1, (1.0,), (5,)).kind is Kind.ALL_RIGHT, "a group of one by design"
