"""Every prompt that is generated is trained on, filtered, carried, dropped or lost: whole steps of the real parts."""

from collections.abc import Iterator
from typing import Any

import pytest
from group_stage import TRAIN, G, Stage, build_stage, groups_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dapo_core.errors import SamplingExhaustedError
from dapo_trainer.groups.dynamic_sampling import Kind
from dapo_trainer.verl_adapter.group_buffer import NothingLeft

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
                    at.buffer.commit()
                    at.queue.kv_clear(handed.keys, TRAIN)  # as verl does after the step
            except SamplingExhaustedError:
                policy = at.buffer._policy()
                in_flight = at.session.groups.in_flight(TRAIN)
                assert policy.starved(batch, at.buffer.carried, in_flight, at.buffer.tally.generated)
                assert on_exhausted != "TrainPartial" or (trained == 0 and at.buffer.carried == 0)
                break
            tally = at.buffer.tally
            assert trained == tally.trained and (trained == batch or (tally.starved and on_exhausted == "TrainPartial"))
            rejected = tally.rejected
            assert carried + tally.generated == trained + rejected + tally.dropped + at.buffer.carried
            assert not separated or tally.dropped == 0
            underway = at.session.groups.uids_in_flight(TRAIN)
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
