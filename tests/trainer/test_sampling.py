"""Dynamic sampling as decisions, one by one and in a simulation of whole steps."""

import random
from collections import deque
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dapo_trainer.groups.dynamic_sampling import Acceptance, GroupOutcome, Kind, Policy, Tally

G = 4


def outcome(uid: str, correct: int | None) -> GroupOutcome:
    """A group of G responses with this many right ones; None: no response could be scored."""
    if correct is None:
        return GroupOutcome(uid, 0, (), (), failures=G)
    return GroupOutcome(uid, correct, tuple(1.0 if i < correct else -1.0 for i in range(G)), (7,) * G, nll=3.5)


@pytest.mark.parametrize(
    ("correct", "kind", "kept", "kept_without_filter"),
    [
        pytest.param(0, Kind.ALL_WRONG, False, True, id="none right"),
        pytest.param(1, Kind.MIXED, True, True, id="one right"),
        pytest.param(G - 1, Kind.MIXED, True, True, id="all but one right"),
        pytest.param(G, Kind.ALL_RIGHT, False, True, id="all right"),
        pytest.param(None, Kind.LOST, False, False, id="lost"),
    ],
)
def test_kind_of_a_group(correct: int | None, kind: Kind, kept: bool, kept_without_filter: bool) -> None:
    group = outcome("a", correct)
    assert group.kind is kind
    assert Policy(keep_uniform=False, max_generated=None, ahead=True).keeps(group) is kept
    assert Policy(keep_uniform=True, max_generated=None, ahead=True).keeps(group) is kept_without_filter


@pytest.mark.parametrize(
    ("correct", "spread", "kept"),
    [
        pytest.param(0, 0.0, False, id="all wrong and all the same"),
        pytest.param(0, 0.3, True, id="all wrong, and some better than others"),
        pytest.param(G, 0.3, True, id="all right, and some better than others"),
        pytest.param(2, 2.0, True, id="mixed"),
        pytest.param(2, 0.0, False, id="mixed, of one score"),
        pytest.param(0, 1e-15, False, id="a difference of rounding"),
        pytest.param(None, 0.0, False, id="lost"),
    ],
)
def test_a_group_is_kept_by_the_spread_of_its_scores(correct: int | None, spread: float, kept: bool) -> None:
    group = replace(outcome("a", correct), spread=spread)
    assert Policy(keep_uniform=False, max_generated=None, ahead=True, by_spread=True).keeps(group) is kept
    everything = Policy(keep_uniform=True, max_generated=None, ahead=True, by_spread=True)
    assert everything.keeps(group) is (correct is not None)


def test_a_group_is_judged_by_the_responses_that_count() -> None:
    assert GroupOutcome("a", 2, (1.0, 0.5), (3, 4), failures=2).kind is Kind.ALL_RIGHT


def test_tally_counts_responses_and_groups() -> None:
    tally = Tally(step=3, batch=8)
    for correct in (0, 2, G, None, 1):
        tally.add(outcome("a", correct), correct in (1, 2))
    assert tally.rejected == 3
    assert tally.groups == {Kind.ALL_WRONG: 1, Kind.MIXED: 2, Kind.ALL_RIGHT: 1, Kind.LOST: 1}
    assert (tally.generated, tally.responses, tally.correct, tally.failures) == (5, 4 * G, 2 + G + 1, G)
    assert (tally.tokens, tally.nll) == (4 * G * 7, 4 * 3.5)
    assert tally.reward == pytest.approx((2 + G + 1) - (4 * G - 2 - G - 1))


@pytest.mark.parametrize(
    ("ahead", "cap", "needed", "ready", "in_flight", "rejected", "acceptance", "generated", "expected"),
    [
        pytest.param(True, None, 8, 0, 0, 0, 1.0, 0, 8, id="ahead, first ask"),
        pytest.param(True, None, 8, 3, 0, 0, 1.0, 0, 5, id="ahead, carried groups count"),
        pytest.param(True, None, 8, 8, 0, 0, 1.0, 0, 0, id="ahead, batch is carried whole"),
        pytest.param(True, None, 8, 0, 0, 0, 0.8, 0, 12, id="ahead, expects rejections, with a margin"),
        pytest.param(True, None, 8, 0, 0, 0, 0.3, 0, 16, id="ahead, a wave is at most two batches"),
        pytest.param(True, None, 8, 4, 4, 9, 0.4, 12, 0, id="ahead, enough on their way if all are kept"),
        pytest.param(True, None, 8, 4, 2, 9, 0.4, 12, 2, id="ahead, too few even if all are kept"),
        pytest.param(True, None, 8, 4, 0, 9, 0.4, 10, 6, id="ahead, the next wave, up to two batches in a step"),
        pytest.param(True, None, 8, 4, 0, 9, 0.4, 13, 14, id="ahead, two batches would not do"),
        pytest.param(True, None, 8, 4, 0, 9, 0.4, 16, 14, id="ahead, two batches did not do"),
        pytest.param(True, 16, 8, 0, 0, 0, 0.1, 0, 16, id="ahead, never above the cap"),
        pytest.param(True, 16, 8, 2, 3, 0, 0.1, 12, 1, id="ahead, in flight counts against the cap"),
        pytest.param(True, 16, 8, 2, 0, 0, 0.1, 20, 0, id="ahead, cap passed"),
        pytest.param(False, None, 2, 0, 8, 3, 0.5, 3, 3, id="window, one for one"),
        pytest.param(False, None, 2, 2, 8, 0, 0.5, 3, 0, id="window, nothing rejected"),
        pytest.param(False, 10, 2, 0, 5, 4, 0.5, 4, 1, id="window, up to the cap"),
        pytest.param(False, 10, 2, 0, 8, 4, 0.5, 4, 0, id="window, warm-up prompts are above the cap"),
        pytest.param(False, None, 4, 1, 1, 0, 0.5, 4, 2, id="window too small to fill the batch"),
        pytest.param(False, None, 4, 1, 1, 5, 0.5, 4, 5, id="window too small, and more are owed"),
    ],
)
def test_prompts_asked_for(
    ahead: bool,
    cap: int | None,
    needed: int,
    ready: int,
    in_flight: int,
    rejected: int,
    acceptance: float,
    generated: int,
    expected: int,
) -> None:
    policy = Policy(keep_uniform=False, max_generated=cap, ahead=ahead)
    assert policy.wanted(needed, ready, in_flight, rejected, acceptance, generated) == expected


@pytest.mark.parametrize("acceptance", [0.6, 0.75, 0.9])
@pytest.mark.parametrize("batch", [32, 512])
def test_few_waves_are_too_small_for_the_batch(batch: int, acceptance: float) -> None:
    rng, policy = random.Random(batch), Policy(keep_uniform=False, max_generated=None, ahead=True)
    asked = policy.wanted(batch, 0, 0, 0, acceptance, 0)
    too_small = sum(sum(rng.random() < acceptance for _ in range(asked)) < batch for _ in range(400))
    assert 0.05 < too_small / 400 < 0.25
    assert asked < 1.2 * batch / acceptance


@pytest.mark.parametrize(
    ("cap", "ready", "in_flight", "generated", "starved"),
    [
        pytest.param(10, 3, 0, 10, True, id="all back, batch not full"),
        pytest.param(10, 4, 0, 10, False, id="batch full at the last moment"),
        pytest.param(10, 3, 1, 10, False, id="one still on its way"),
        pytest.param(10, 3, 0, 9, False, id="one below the cap"),
        pytest.param(10, 0, 0, 12, True, id="above the cap"),
        pytest.param(None, 0, 0, 10_000, False, id="no cap"),
    ],
)
def test_starved(cap: int | None, ready: int, in_flight: int, generated: int, starved: bool) -> None:
    policy = Policy(keep_uniform=False, max_generated=cap, ahead=True)
    assert policy.starved(4, ready, in_flight, generated) is starved


def test_acceptance_starts_hopeful_and_never_reaches_zero() -> None:
    acceptance = Acceptance(memory=8)
    assert acceptance.value == 1.0
    for kept in (False, True):
        acceptance.add(kept)
    acceptance.end_wave()
    assert acceptance.value == 0.5
    for _ in range(100):
        acceptance.add(False)
    acceptance.end_wave()
    assert acceptance.value == Acceptance.FLOOR
    for _ in range(100):
        acceptance.add(True)
    acceptance.end_wave()
    assert acceptance.value == pytest.approx(1.0)


def test_acceptance_counts_no_wave_in_part() -> None:
    acceptance = Acceptance(memory=8)
    for kept in [False] * 4 + [True] * 4:  # the easy ones come back first, and are all right
        assert acceptance.value == 1.0
        acceptance.add(kept)
    acceptance.end_wave()
    assert acceptance.value == 0.5


def test_acceptance_follows_the_newest_groups() -> None:
    acceptance = Acceptance(memory=8)
    for wave in ([True] * 100, [False] * 6):
        for kept in wave:
            acceptance.add(kept)
        acceptance.end_wave()
    assert acceptance.value == pytest.approx(2 / 8)


@given(
    batch=st.sampled_from([16, 64, 256]),
    mixed=st.floats(0.3, 0.9),
    noise=st.floats(0, 1),
    seed=st.integers(0, 1000),
)
@settings(max_examples=25, deadline=None)
def test_b2_the_order_of_completion_does_not_make_a_step_generate_more(
    batch: int, mixed: float, noise: float, seed: int
) -> None:
    """Easy groups come back first, hard ones last, with more or less noise."""
    rng, policy, acceptance = random.Random(seed), Policy(False, 10 * batch, ahead=True), Acceptance(4 * batch)
    generated = 0
    for step in range(10):
        ready = asked = 0
        wave: list[tuple[float, bool]] = []
        while ready < batch or wave:
            if not wave:
                acceptance.end_wave()
            count = policy.wanted(batch, ready, len(wave), 0, acceptance.value, asked - len(wave))
            assert len(wave) + count <= 2 * batch
            if asked + count > 2 * batch:
                assert ready + len(wave) + 2 * batch - asked < batch, "two batches cannot fill this one"
            for _ in range(count):
                difficulty = rng.random()
                kept = abs(difficulty - 0.5) < mixed / 2
                wave.append((difficulty + rng.gauss(0, noise), kept))
            asked += count
            wave.sort()
            kept = wave.pop(0)[1]
            ready += kept
            acceptance.add(kept)
        acceptance.end_wave()
        generated += asked if step else 0  # the first step does not know the rate
    noise_of_small_batches = 1 + 1.5 / batch**0.5
    assert generated * mixed / (9 * batch) < 1.1 * noise_of_small_batches


@dataclass
class Simulation:
    """The buffer's loop over plain lists: `groups` are what the prompts will turn out to be, in order."""

    policy: Policy
    groups: deque[int | None]
    batch: int
    made: int = 0
    in_flight: deque[GroupOutcome] = field(default_factory=deque)
    ready: list[GroupOutcome] = field(default_factory=list)
    rejected: list[GroupOutcome] = field(default_factory=list)
    most_asked: int = 0

    def ask(self, count: int) -> None:
        for _ in range(count):
            self.in_flight.append(outcome(str(self.made), self.groups.popleft() if self.groups else 1))
            self.made += 1

    def fill(self, arrivals: list[int]) -> bool:
        """Whether the batch became full; otherwise it starved. `arrivals`: how many groups come back at a time."""
        acceptance, tally, owed, waits = Acceptance(), Tally(1, self.batch), 0, iter(arrivals)
        while len(self.ready) < self.batch or (self.policy.ahead and self.in_flight):
            count = (len(self.in_flight), owed, acceptance.value, tally.generated)
            if self.policy.starved(self.batch, len(self.ready), len(self.in_flight), tally.generated):
                return False
            asked = self.policy.wanted(self.batch, len(self.ready), *count)
            self.ask(asked)
            owed = max(0, owed - asked)
            self.most_asked = max(self.most_asked, self.made)
            assert self.in_flight, "nothing is under way and nobody would ever know"
            for _ in range(min(len(self.in_flight), next(waits, 1))):
                group = self.in_flight.popleft()
                kept = self.policy.keeps(group)
                tally.add(group, kept)
                acceptance.add(kept)
                owed += not kept
                (self.ready if kept else self.rejected).append(group)
        return True


kinds = st.one_of(st.integers(0, G), st.none())


@given(
    groups=st.lists(kinds, max_size=120),
    batch=st.integers(1, 12),
    cap=st.one_of(st.none(), st.integers(1, 5)),
    ahead=st.booleans(),
    filtered=st.booleans(),
    warm=st.integers(0, 2),
    arrivals=st.lists(st.integers(1, 9), max_size=60),
)
def test_a_step_fills_its_batch_or_starves_at_the_cap(
    groups: list[int | None],
    batch: int,
    cap: int | None,
    ahead: bool,
    filtered: bool,
    warm: int,
    arrivals: list[int],
) -> None:
    limit = None if cap is None else cap * batch
    policy = Policy(keep_uniform=not filtered, max_generated=limit, ahead=ahead)
    step = Simulation(policy, deque(groups), batch)
    window = 0 if ahead else batch * warm  # prompts that were under way before the step began
    step.ask(window)
    full = step.fill(arrivals)

    assert all(policy.keeps(group) for group in step.ready)
    if filtered:
        assert all(0 < group.correct < G for group in step.ready)
    assert full == (len(step.ready) >= batch)
    assert limit is None or step.most_asked <= max(limit, window)
    assert full or step.made == max(limit or 0, window), "starved before all that the cap allows was tried"
    accounted = [*step.ready, *step.rejected, *step.in_flight]
    assert sorted(int(group.uid) for group in accounted) == list(range(step.made))
    assert not (ahead and step.in_flight)
