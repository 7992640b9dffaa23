"""The replay buffer by groups, with TransferQueue as a dictionary and the rollout as a thread."""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import engines
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from dapo_trainer.sampling import GroupOutcome, Kind
from dapo_trainer.verl_adapter import group_buffer, session
from dapo_trainer.verl_adapter.group_buffer import GroupBuffer, NothingLeft, stored
from dapo_trainer.verl_adapter.ledger import Ledger
from dapo_trainer.verl_adapter.session import SamplingExhausted, Session, Stopped

G = 4
TRAIN = "train"
Items = dict[str, dict[str, Any]]


@dataclass
class Queue:
    """TransferQueue's calls that the buffer makes, on a dictionary of tags."""

    items: Items = field(default_factory=dict)

    def kv_list(self, partition_id: str) -> dict[str, Items]:
        return {partition_id: dict(self.items)} if self.items else {}

    def kv_clear(self, keys: Iterable[str], partition_id: str) -> None:
        for key in keys:
            del self.items[key]  # clearing what is not there would be a mistake of the buffer


@dataclass
class News:
    """A report that keeps its events."""

    events: list[tuple[str, str, int | None]] = field(default_factory=list)

    def event(self, type: str, reason: str, message: str, step: int | None = None) -> None:
        self.events.append((reason, message, step))

    def phase(self, phase: str, step: int, total_steps: int, detail: str = "") -> None: ...
    def step(self, step: int, values: Mapping[str, float]) -> None: ...
    def samples(self, step: int, rows: Any) -> None: ...
    def checkpoint(self, step: int, folder: Path, metrics: Mapping[str, float]) -> None: ...


@dataclass
class Rollout:
    """Generates what it is told next, in a thread: as many right answers a group as `answers` says, then `then`."""

    session: Session
    queue: Queue
    answers: Iterator[int | None]
    then: int | None = 2
    made: int = 0
    outcomes: list[GroupOutcome] = field(default_factory=list)

    def __call__(self, count: int) -> int:
        uids = [f"p{self.made + i}" for i in range(count)]
        self.made += count
        self.session.ledger.submit(TRAIN, uids)
        for uid in uids:
            self.queue.items[uid] = {"is_prompt": True, "status": "pending"}
        outcomes = [self.generate(uid, next(self.answers, self.then)) for uid in uids]
        self.outcomes += outcomes
        threading.Thread(target=self.session.ledger.finish, args=(TRAIN, outcomes), daemon=True).start()
        return count

    def generate(self, uid: str, correct: int | None) -> GroupOutcome:
        if correct is None:
            return GroupOutcome(uid, 0, (), (), failures=G)
        keys = tuple(f"{uid}_{i}_0" for i in range(G))
        tags = tuple({"seq_len": 5, "of": uid} for _ in range(G))
        self.queue.items |= dict(zip(keys, tags, strict=True))
        rewards = tuple(1.0 if i < correct else -1.0 for i in range(G))
        return GroupOutcome(uid, correct, rewards, (5,) * G, keys=keys, tags=tags)


@dataclass
class Stage:
    queue: Queue
    news: News
    session: Session
    rollout: Rollout
    buffer: GroupBuffer

    def step(self, batch: int, number: int = 1) -> Any:
        """A colocated step: ask, wait, take."""
        if missing := self.buffer.begin_step(number, batch):
            self.rollout(missing)
        return self.buffer.sample(number, TRAIN, batch)[0]


Build = Callable[..., Stage]


def build_stage(
    patch: pytest.MonkeyPatch,
    mode: str = "dapo_colocated",
    answers: Iterable[int | None] = (),
    then: int | None = 2,
    enabled: bool = True,
    cap: int = 10,
    on_exhausted: str = "TrainPartial",
) -> Stage:
    queue, news = Queue(), News()
    sampling = {"enabled": enabled, "max_generation_batches": cap, "on_exhausted": on_exhausted}
    opened = Session(news, {"dynamic_sampling": sampling})
    patch.setattr(session, "_current", opened)
    patch.setattr(group_buffer, "WAKE_SECONDS", 0.02)
    patch.setattr(group_buffer, "tq", SimpleNamespace(kv_list=queue.kv_list, kv_clear=queue.kv_clear))
    rollout = Rollout(opened, queue, iter(answers), then)
    return Stage(queue, news, opened, rollout, GroupBuffer(mode, rollout, trainer_config={}))


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Build:
    return partial(build_stage, monkeypatch)


def groups_of(batch: Any) -> list[str]:
    return list(dict.fromkeys(key.split("_")[0] for key in batch.keys))


def test_the_batch_is_exactly_the_groups_that_teach(stage: Build) -> None:
    at = stage(answers=[0, 2, G, 1, None, 3, 2, 1])
    batch = at.step(4)
    assert groups_of(batch) == ["p1", "p3", "p5", "p6"]
    assert len(batch.keys) == 4 * G and [tag["of"] for tag in batch.tags[:G]] == ["p1"] * G
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
    assert groups_of(second)[0] == f"p{made - surplus}", "the oldest first"
    assert not {*groups_of(first)} & {*groups_of(second)}
    assert at.buffer.tally.step == 2 and at.buffer.tally.generated == at.rollout.made - made


def test_dropped_surplus_leaves_the_queue(stage: Build) -> None:
    at = stage(answers=[0] * 40, cap=0)
    batch = at.step(2)
    at.queue.kv_clear(batch.keys, TRAIN)
    assert at.buffer.tally.dropped > 0
    assert len(at.queue.items) == at.buffer.carried * (1 + G)


class TestCap:
    def test_train_partial_trains_on_what_there_is(self, stage: Build) -> None:
        at = stage(answers=[2, 0, G, 3], then=0, cap=3)
        assert groups_of(at.step(4, number=7)) == ["p0", "p3"]
        assert at.rollout.made == at.buffer.tally.generated == 12
        [(reason, message, step)] = at.news.events
        assert (reason, step) == ("SamplingExhausted", 7)
        assert message == (
            "After 12 prompts (3 batches) only 2 of 4 groups have both right and wrong answers "
            "(9 all wrong, 1 all right, 0 lost); training on those."
        )

    @pytest.mark.parametrize("choice", ["TrainPartial", "Suspend", "Fail"])
    def test_nothing_to_train_on_ends_the_run(self, stage: Build, choice: str) -> None:
        at = stage(then=G, cap=2, on_exhausted=choice)
        with pytest.raises(SamplingExhausted, match=r"After 8 prompts .* only 0 of 4 .* raise maxGenerationBatches\."):
            at.step(4)
        assert at.rollout.made == 8

    @pytest.mark.parametrize("choice", ["Suspend", "Fail"])
    def test_a_part_is_not_trained_on_unless_allowed(self, stage: Build, choice: str) -> None:
        at = stage(answers=[2, 2, 2], then=0, cap=2, on_exhausted=choice)
        with pytest.raises(SamplingExhausted, match="only 3 of 4"):
            at.step(4)

    def test_groups_that_are_all_lost_end_the_run_without_dynamic_sampling_too(self, stage: Build) -> None:
        at = stage(then=None, cap=2, enabled=False)
        with pytest.raises(
            SamplingExhausted, match=r"0 of 4 groups could be scored .* 8 lost\)\. See the trainer's log"
        ):
            at.step(4)

    def test_no_cap(self, stage: Build) -> None:
        at = stage(answers=[0] * 200, cap=0)
        assert len(groups_of(at.step(2))) == 2


def test_without_dynamic_sampling_every_scored_group_is_trained_on(stage: Build) -> None:
    at = stage(answers=[0, G, 2, 1], enabled=False)
    assert groups_of(at.step(4)) == ["p0", "p1", "p2", "p3"]
    assert at.rollout.made == 4


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
        assert at.rollout.made == 5 and at.buffer._owed == 3
        at.buffer.begin_step(2, 4)
        at.rollout(1)
        assert len(groups_of(at.buffer.sample(2, TRAIN, 4)[0])) == 4, "a window too small would wait for ever"

    def test_a_partial_batch_does_not_widen_the_window(self, stage: Build) -> None:
        at = stage("dapo_separated", answers=[2, 0, 0, 0], then=0, cap=1)
        at.buffer.begin_step(1, 4)
        at.rollout(4)
        assert groups_of(at.buffer.sample(1, TRAIN, 4)[0]) == ["p0"]
        assert at.buffer._owed == 0


def settle(at: Stage) -> None:
    """Take in what is under way without asking for more."""
    while at.session.ledger.in_flight(TRAIN):
        at.buffer._owed += at.buffer._sort(at.buffer._policy(), at.session.ledger.take(TRAIN, 1))
    at.buffer._owed += at.buffer._sort(at.buffer._policy(), at.session.ledger.take(TRAIN, 0))


def rejected(at: Stage) -> int:
    groups = at.buffer.tally.groups
    return groups[Kind.ALL_WRONG] + groups[Kind.ALL_RIGHT] + groups[Kind.LOST]


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
        at.session.ledger.submit(TRAIN, ["open"])
        at.buffer.restore()
        assert at.buffer.carried == 1
        assert {key.split("_")[0] for key in at.queue.items} == {"good", "open"}
        at.buffer.begin_step(1, 1)
        batch, _ = at.buffer.sample(1, TRAIN, 1)
        assert batch.keys == [f"good_{i}_0" for i in range(G)] and batch.tags[0] == {"seq_len": 5, "of": "good"}
        assert "good" not in at.queue.items and "good_0_0" in at.queue.items

    def test_rejected_ones_are_replaced_in_the_window(self, stage: Build) -> None:
        at = stage("dapo_separated")
        self.restored(at)
        at.buffer.restore()
        assert at.buffer._owed == 2

    def test_a_prompt_sent_out_again_is_not_taken_twice(self, stage: Build) -> None:
        at = stage("dapo_separated")
        self.restored(at)
        at.session.ledger.submit(TRAIN, ["good"])  # it finished between verl's second try and this call
        at.session.ledger.finish(TRAIN, [at.rollout.generate("good", 1)])
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
    at.session.ledger.submit(TRAIN, ["never"])
    threading.Timer(0.05, at.session.stop.set).start()
    with pytest.raises(Stopped):
        at.buffer.sample(1, TRAIN, 2)


def test_a_crash_of_the_rollout_wakes_the_trainer(stage: Build) -> None:
    at = stage()
    at.buffer.begin_step(1, 2)
    at.session.ledger.submit(TRAIN, ["never"])
    threading.Timer(0.05, at.session.ledger.fail, [RuntimeError("the engine died")]).start()
    with pytest.raises(RuntimeError, match="the engine died"):
        at.buffer.sample(1, TRAIN, 2)


class TestLedger:
    def test_partitions_are_apart(self) -> None:
        ledger = Ledger()
        ledger.submit("train", ["a", "b"])
        ledger.submit("val", ["c"])
        ledger.finish("val", [GroupOutcome("c", 0, (), ())])
        assert ledger.take("train", 0) == [] and [o.uid for o in ledger.take("val", 0)] == ["c"]
        assert (ledger.in_flight("train"), ledger.in_flight("val")) == (2, 0)
        assert ledger.underway("train") == {"a", "b"} and ledger.underway("val") == set()

    def test_a_group_is_in_flight_until_it_is_taken(self) -> None:
        ledger = Ledger()
        ledger.submit("train", ["a"])
        ledger.finish("train", [GroupOutcome("a", 0, (), ())])
        assert ledger.in_flight("train") == 1, "else its place would be filled twice"
        ledger.take("train", 0)
        assert ledger.in_flight("train") == 0

    def test_whoever_waits_is_woken_at_once(self) -> None:
        ledger = Ledger()
        ledger.submit("train", ["a"])
        threading.Timer(0.05, ledger.finish, ["train", [GroupOutcome("a", 0, (), ())]]).start()
        assert [o.uid for o in ledger.take("train", 30)] == ["a"]  # the test's own limit would be over before

    def test_a_failure_reaches_every_later_call(self) -> None:
        ledger = Ledger()
        ledger.fail(ValueError("gone"))
        for _ in range(2):
            with pytest.raises(ValueError, match="gone"):
                ledger.take("train", 30)

    def test_many_threads_lose_nothing(self) -> None:
        ledger, taken = Ledger(), set[str]()
        uids = [f"{i}" for i in range(400)]
        ledger.submit("train", uids)
        workers = [
            threading.Thread(
                target=lambda part: [ledger.finish("train", [GroupOutcome(u, 0, (), ())]) for u in part],
                args=[uids[i::4]],
            )
            for i in range(4)
        ]
        for worker in workers:
            worker.start()
        while len(taken) < len(uids):
            taken |= {outcome.uid for outcome in ledger.take("train", 5)}
        for worker in workers:
            worker.join()
        assert ledger.in_flight("train") == 0 and taken == set(uids)


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
        assert [event[0] for event in at.news.events] == ["SamplingExhausted"], "told once a step"
        assert at.news.events[0][1].startswith("After 4 prompts (1 batches) only 1 of 2 groups have both right and")
        assert at.buffer._owed == 0 and at.buffer.tally.trained == 1

    def test_nothing_at_all_ends_the_run(self, stage: Build) -> None:
        at = stage("dapo_separated", then=0, cap=1)
        at.buffer.begin_step(1, 4)
        at.rollout(4)
        with pytest.raises(SamplingExhausted, match="only 0 of 1 groups"):
            at.buffer.sample(1, TRAIN, 1)

    @pytest.mark.parametrize("choice", ["Suspend", "Fail"])
    def test_other_choices_end_the_run_there_too(self, stage: Build, choice: str) -> None:
        at = stage("dapo_separated", answers=[2, 0, 0, 0], then=0, cap=1, on_exhausted=choice)
        at.buffer.begin_step(1, 4)
        at.rollout(4)
        at.buffer.sample(1, TRAIN, 1)
        with pytest.raises(SamplingExhausted, match="only 1 of 2 groups"):
            at.buffer.sample(1, TRAIN, 1)

    def test_verls_own_step_goes_on_with_the_mini_batches_it_has(self, stage: Build) -> None:
        """`PPOTrainer.step` and `_step_once` as they are, with the engines taken out."""
        at = stage("dapo_separated", answers=[1, 0, 3, 0], then=0, cap=1)
        trainer = stripped_trainer(at, batch=4)
        metrics: dict[str, Any] = {}
        batch = trainer.step(metrics, {})
        assert groups_of(batch) == ["p0", "p2"] and len(batch.tags) == 2 * G
        assert trainer.updated == [["p0"], ["p2"]], "two updates, and none of nothing"
        assert metrics["actor/pg_loss"] == 0.5
        assert at.buffer.tally.trained == 2 and at.buffer.tally.generated == 4


def stripped_trainer(at: Stage, batch: int) -> Any:
    """A Separated trainer that samples from `at` and notes its updates, a group a mini-batch."""
    trainers = engines.load("dapo_trainer.verl_adapter.trainers")

    class Stripped(trainers.Separated):  # type: ignore[misc, name-defined]
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


def test_what_is_left_of_a_group_must_be_two_responses_to_compare() -> None:
    assert GroupOutcome("a", 1, (1.0,), (5,), failures=G - 1).kind is Kind.LOST
    assert GroupOutcome("a", 1, (1.0, -1.0), (5, 5), failures=G - 2).kind is Kind.MIXED
    assert GroupOutcome("a", 1, (1.0,), (5,)).kind is Kind.ALL_RIGHT, "a group of one by design"


# Hard prompts first: only after many rejections does the buffer ask for so many that there is a surplus to drop.
ANSWERS = st.builds(
    lambda hard, rest: [0] * hard + rest,
    st.sampled_from([0, 30, 50]),
    st.lists(st.one_of(st.integers(0, G), st.none()), max_size=40),
)


@given(
    answers=ANSWERS,
    then=st.sampled_from([2, 2, 2, 2, 0, G, None]),
    batch=st.integers(1, 5),
    steps=st.integers(1, 4),
    cap=st.sampled_from([0, 1, 2, 40]),
    enabled=st.booleans(),
    on_exhausted=st.sampled_from(["TrainPartial", "Suspend", "Fail"]),
    separated=st.booleans(),
)
@settings(max_examples=120, suppress_health_check=[HealthCheck.too_slow])
def test_every_prompt_is_accounted_for(
    answers: list[int | None],
    then: int | None,
    batch: int,
    steps: int,
    cap: int,
    enabled: bool,
    on_exhausted: str,
    separated: bool,
) -> None:
    """Whole steps of the real buffer, ledger and rules, with a rollout that answers as told."""
    unreachable = then in (0, G) if enabled else then is None
    cap = 3 if cap == 0 and (unreachable or then is None) else cap  # without a cap that would be for ever
    mode = "dapo_separated" if separated else "dapo_colocated"
    with pytest.MonkeyPatch.context() as patch:
        at = build_stage(patch, mode, answers, then, enabled, cap, on_exhausted)
        born: dict[str, int] = {}  # the step that a group was generated for
        for step in range(1, steps + 1):
            carried, trained = at.buffer.carried, 0
            try:
                for handed in take_step(at, step, batch, mini_batches=batch if separated else 1):
                    uids = groups_of(handed)
                    trained += len(uids)
                    note_births(at, born, step)
                    assert all(worth_training(at, uid, enabled) for uid in uids)
                    assert len(handed.keys) == len(uids) * G == len(handed.tags)
                    if not separated:
                        assert all(step - born[uid] <= 1 for uid in uids), "carried further than the next step"
                    at.queue.kv_clear(handed.keys, TRAIN)  # as verl does after the step
            except SamplingExhausted:
                policy = at.buffer._policy()
                in_flight = at.session.ledger.in_flight(TRAIN)
                assert policy.starved(batch, at.buffer.carried, in_flight, at.buffer.tally.generated)
                assert on_exhausted != "TrainPartial" or (trained == 0 and at.buffer.carried == 0)
                break
            tally = at.buffer.tally
            assert trained == tally.trained and (trained == batch or (tally.starved and on_exhausted == "TrainPartial"))
            rejected = tally.rejected(at.buffer._policy())
            assert carried + tally.generated == trained + rejected + tally.dropped + at.buffer.carried
            assert not separated or tally.dropped == 0
            underway = at.session.ledger.underway(TRAIN)
            left = {key.split("_")[0] for key in at.queue.items}
            kept = {outcome.uid for outcome in at.buffer._ready}
            assert left - underway == kept, "the queue holds what is carried, and nothing else"


def take_step(at: Stage, step: int, batch: int, mini_batches: int) -> Iterator[Any]:
    missing = at.buffer.begin_step(step, batch)
    if mini_batches == 1 and at.buffer._ahead:
        if missing:
            at.rollout(missing)
    else:
        at.rollout(batch)
    for _ in range(mini_batches):
        try:
            yield at.buffer.sample(step, TRAIN, batch // mini_batches)[0]
        except NothingLeft:
            return


def note_births(at: Stage, born: dict[str, int], step: int) -> None:
    for number in range(at.rollout.made):
        born.setdefault(f"p{number}", step)


def worth_training(at: Stage, uid: str, enabled: bool) -> bool:
    outcome = next(outcome for outcome in at.rollout.outcomes if outcome.uid == uid)
    return 0 < outcome.correct < G if enabled else outcome.kind is not Kind.LOST
