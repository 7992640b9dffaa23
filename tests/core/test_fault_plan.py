"""Plans of `dapo chaos`: the same for the same seed, of the rate that is asked for, and refused with a remedy."""

import math
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dapo_core.errors import SpecError
from dapo_core.naming import ROLES
from dapo_core.run.fault_plan import EFFECTS, FaultKind, PlannedFault, fault_plan

RATES = "it must be more than 0 and at most 60,000 faults an hour."
MINUTES = "it must be more than 0 and at most 10,080 minutes."
KINDS = st.lists(st.sampled_from(list(FaultKind)), min_size=1, max_size=9)


@given(
    seed=st.integers(0, 10**9), count=st.integers(1, 200), minutes=st.floats(1, 600), kinds=KINDS, draw=st.floats(0, 1)
)
def test_a_plan_follows_from_what_is_asked_for(
    seed: int, count: int, minutes: float, kinds: list[FaultKind], draw: float
) -> None:
    rate = count / minutes * 60
    plan = fault_plan(seed, rate, minutes, kinds, ROLES)
    assert plan == fault_plan(seed, rate, minutes, list(kinds), list(ROLES))
    assert len(plan) == count
    assert [fault.at for fault in plan] == sorted(fault.at for fault in plan)
    assert all(0 <= fault.at < minutes * 60 and 0 <= fault.draw < 1 for fault in plan)
    for fault in plan:
        known = EFFECTS[fault.kind].roles
        assert fault.kind in kinds and (fault.role in known if known else fault.role is None)
    often = Counter(fault.kind for fault in plan)
    assert max(often.values()) - min(often[kind] for kind in kinds) <= 1, "kinds take turns"


@given(names=st.lists(st.text(min_size=1), unique=True), draw=st.floats(0, 1))
def test_a_target_is_chosen_whatever_the_order(names: list[str], draw: float) -> None:
    fault = PlannedFault(0, FaultKind.KILL, "rollout", draw)
    chosen = fault.choose(names)
    assert chosen == fault.choose(names[::-1])
    assert chosen in names if names else chosen is None


def test_other_seeds_give_other_plans() -> None:
    assert len({fault_plan(seed, 60, 10, ["kill"], ["rollout"]) for seed in range(50)}) == 50


# A table in the docs names its seeds: these plans do not change.
PUBLISHED = [(136, "kill", "trainer"), (291, "scale", "rollout"), (586, "drain", "trainer")]


def test_a_published_seed_keeps_its_plan() -> None:
    plan = fault_plan(7, 12, 15, ["kill", "drain", "scale"], ["rollout", "trainer"])
    assert [(round(fault.at), fault.kind, fault.role) for fault in plan] == PUBLISHED


@pytest.mark.parametrize(
    ("given", "sentences"),
    [
        pytest.param({"rate": 0}, [f"--rate is 0: {RATES}"], id="none"),
        pytest.param({"rate": math.inf}, [f"--rate is inf: {RATES}"], id="endless"),
        pytest.param({"minutes": -3}, [f"--minutes is -3: {MINUTES}"], id="negative"),
        pytest.param({"minutes": math.nan}, [f"--minutes is nan: {MINUTES}"], id="no number"),
        pytest.param({"seed": -1}, ["--seed is -1: it must be 0 or more."], id="seed"),
        pytest.param({"kinds": []}, [f"--kind names nothing: name one of {', '.join(FaultKind)}."], id="no kind"),
        pytest.param({"roles": ["king"]}, ["--role is king: it must be one of head, trainer, rollout."], id="role"),
        pytest.param(
            {"kinds": ["scale", "kill"], "roles": ["head"]},
            ["--kind is scale, which does not hit head: add --role rollout, or leave the kind out."],
            id="a kind for no role",
        ),
        pytest.param(
            {"rate": 1, "minutes": 5},
            ["--rate 1 for --minutes 5 gives 0 faults: it must be one of 1 to 1000; change one of the two."],
            id="no fault",
        ),
        pytest.param(
            {"rate": 6000, "minutes": 60},
            ["--rate 6000 for --minutes 60 gives 6000 faults: it must be one of 1 to 1000; change one of the two."],
            id="too many",
        ),
    ],
)
def test_bad_input_is_refused_with_a_remedy(given: dict[str, Any], sentences: list[str]) -> None:
    with pytest.raises(SpecError) as refused:
        fault_plan(**{"seed": 0, "rate": 20, "minutes": 60, "kinds": ["kill"], "roles": ["rollout"], **given})
    assert [problem.message for problem in refused.value.problems] == sentences
