"""The health rules: one row a curve."""

import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from dapo_core.db import split_value
from dapo_core.jobspec.guard_fields import Guard
from dapo_core.run.guards import HEALTH_RULES, Alert, GuardJudge, evaluate, metrics_of

ENTROPY, TRUNCATED, KEPT = "actor/entropy", "response_length/clip_ratio", "dapo/groups/mixed"
MISMATCH = "training/rollout_probs_diff_mean"
REWARD = "dapo/reward/generated"


def curve(values: Sequence[float], first: int = 1) -> list[tuple[int, float | None, str | None]]:
    return [(step, *split_value(value)) for step, value in enumerate(values, start=first)]


def guard(rule: str, threshold: float, for_steps: int, action: str = "Warn") -> Guard:
    return Guard.model_validate({"rule": rule, "threshold": threshold, "forSteps": for_steps, "action": action})


# rule, threshold, forSteps, metric, values -> step since which it holds, None when it does not
CASES: dict[str, tuple[str, float, int, str, list[float], int | None]] = {
    "entropy stays up": ("EntropyCollapse", 0.1, 3, ENTROPY, [0.5] * 9, None),
    "entropy collapses": ("EntropyCollapse", 0.1, 3, ENTROPY, [0.5, 0.5, 0.09, 0.05, 0.04], 3),
    "not long enough": ("EntropyCollapse", 0.1, 3, ENTROPY, [0.5, 0.5, 0.09, 0.05], None),
    "a wavering curve does not begin": ("EntropyCollapse", 0.1, 2, ENTROPY, [0.09, 0.11] * 9, None),
    "and does not end what began": ("EntropyCollapse", 0.1, 2, ENTROPY, [0.09, 0.09, *[0.11, 0.09] * 9], 1),
    "it ends as it began": ("EntropyCollapse", 0.1, 2, ENTROPY, [0.09, 0.09, 0.2, 0.2], None),
    "and may begin again": ("EntropyCollapse", 0.1, 2, ENTROPY, [0.0, 0.0, 0.2, 0.2, 0.0, 0.0], 5),
    "just at the threshold": ("EntropyCollapse", 0.1, 1, ENTROPY, [0.1], None),
    "gaps decide nothing": ("EntropyCollapse", 0.1, 2, ENTROPY, [0.09, math.nan, 0.09], 1),
    "only gaps": ("EntropyCollapse", 0.1, 1, ENTROPY, [math.nan] * 5, None),
    "no curve": ("EntropyCollapse", 0.1, 1, "another", [0.0] * 5, None),
    "an explosion is a multiple of the start": ("EntropyExplosion", 3.0, 2, ENTROPY, [0.2] * 20 + [0.7, 0.7], 21),
    "less than that multiple": ("EntropyExplosion", 3.0, 2, ENTROPY, [0.2] * 20 + [0.59, 0.59], None),
    "no baseline yet": ("EntropyExplosion", 3.0, 1, ENTROPY, [0.2] * 18 + [9.0], None),
    "a baseline of nothing": ("EntropyExplosion", 3.0, 1, ENTROPY, [0.0] * 20 + [9.0], None),
    "responses run into the limit": ("LengthExplosion", 0.5, 2, TRUNCATED, [0.1, 0.6, 0.7], 2),
    "half of them are not more than half": ("LengthExplosion", 0.5, 1, TRUNCATED, [0.5], None),
    "reward falls from its best": ("RewardCollapse", 0.5, 3, REWARD, [0.8] * 10 + [0.2] * 3, 11),
    "reward falls slowly": ("RewardCollapse", 0.5, 2, REWARD, [1 - step / 40 for step in range(60)], 26),
    "reward falls a little": ("RewardCollapse", 0.5, 3, REWARD, [0.8] * 10 + [0.4] * 9, None),
    "one good step is no best": ("RewardCollapse", 0.5, 2, REWARD, [0.0] * 9 + [1.0] + [0.0] * 9, None),
    "verl's own name of the reward": (
        "RewardCollapse",
        0.5,
        1,
        "critic/score/mean",
        [0.8] * 10 + [0.2],
        11,
    ),
    "groups teach nothing": ("SamplingStarvation", 0.1, 2, KEPT, [0.5, 0.05, 0.0], 2),
    "groups teach": ("SamplingStarvation", 0.1, 2, KEPT, [0.5, 0.05, 0.2], None),
    "rollout and trainer drift apart": ("RolloutMismatch", 0.1, 2, MISMATCH, [0.01, 0.2, 0.3], 2),
    "rollout and trainer agree": ("RolloutMismatch", 0.1, 2, MISMATCH, [0.01, 0.2, 0.02], None),
    "all is finite": ("NonFinite", 0.0, 1, "actor/grad_norm", [1.0, 2.0], None),
    "NaN at once": ("NonFinite", 0.0, 1, "actor/grad_norm", [1.0, math.nan], 2),
    "infinity": ("NonFinite", 0.0, 1, "actor/pg_loss", [math.inf], 1),
    "over with the next step": ("NonFinite", 0.0, 1, "actor/pg_loss", [math.nan, 1.0], None),
    "NaN of another metric": ("NonFinite", 0.0, 1, "val/x", [math.nan], None),
}


@pytest.mark.parametrize(
    ("rule", "threshold", "for_steps", "metric", "values", "since"), CASES.values(), ids=CASES.keys()
)
def test_rules(
    rule: str, threshold: float, for_steps: int, metric: str, values: list[float], since: int | None
) -> None:
    alerts = evaluate([guard(rule, threshold, for_steps)], {metric: curve(values)})
    assert [alert.since for alert in alerts] == ([] if since is None else [since])


def test_an_alert_tells_all_of_it() -> None:
    rules = [guard("EntropyCollapse", 0.05, 2, "Suspend")]
    expected: dict[str, Any] = {"since": 11, "step": 12, "value": 0.01, "threshold": 0.05}
    (found,) = evaluate(rules, {ENTROPY: curve([0.5, 0.04, 0.01], first=10)})
    sentence = (
        "Entropy (actor/entropy) is 0.01 nats per token, below 0.05 since step 11. Raise "
        "algorithm.clipHigh or batch.temperature."
    )
    assert found == Alert("EntropyCollapse", "Suspend", ENTROPY, message=sentence, **expected)


def test_the_metric_that_is_not_finite_is_named() -> None:
    history = {"actor/pg_loss": curve([1.0, 1.0]), "actor/grad_norm": curve([1.0, math.nan])}
    (found,) = evaluate([guard("NonFinite", 0.0, 1, "Fail")], history)
    assert (found.metric, found.step, found.action) == ("actor/grad_norm", 2, "Fail")


def test_groups_kept_by_spread_are_no_starvation_though_none_is_mixed() -> None:
    history = {KEPT: curve([0.0] * 5), "dapo/groups/spread": curve([0.9] * 5)}
    assert evaluate([guard("SamplingStarvation", 0.1, 5)], history) == []
    assert evaluate([guard("SamplingStarvation", 0.1, 5)], {KEPT: curve([0.0] * 5)}) != []


def test_rules_are_judged_each_for_itself() -> None:
    rules = [guard("EntropyCollapse", 0.1, 1), guard("LengthExplosion", 0.5, 1), guard("SamplingStarvation", 0.1, 1)]
    history = {ENTROPY: curve([0.0]), TRUNCATED: curve([0.1]), KEPT: curve([0.0])}
    assert [alert.rule for alert in evaluate(rules, history)] == ["EntropyCollapse", "SamplingStarvation"]
    assert metrics_of(rules) == {ENTROPY, TRUNCATED, "dapo/truncated/generated", KEPT, "dapo/groups/spread"}
    assert evaluate([], history) == []


VALUES = st.sampled_from([0.0, 0.05, 0.2, 0.5, 0.9, 3.0, math.nan])


@given(
    st.lists(st.tuples(VALUES, VALUES, st.integers(0, 3)), min_size=1, max_size=60),
    st.lists(st.integers(0, 60), max_size=6),
    st.integers(1, 4),
)
@hypothesis_settings(max_examples=200, deadline=None)
def test_b07_curves_that_arrive_in_parts_are_judged_as_a_whole(
    values: list[tuple[float, float, int]], cuts: list[int], for_steps: int
) -> None:
    rules = [guard(rule, 0.3, for_steps) for rule in HEALTH_RULES]
    points = [
        (metric, step, *split_value(value))
        for step, (first, second, which) in enumerate(values, start=1)
        for metric, value in ((ENTROPY, first), (REWARD if which else "critic/score/mean", second))
    ]

    def history(part: Sequence[tuple[str, int, float | None, str | None]]) -> dict[str, list[Any]]:
        curves: dict[str, list[Any]] = {}
        for metric, *point in part:
            curves.setdefault(metric, []).append(tuple(point))
        return curves

    judge = GuardJudge(rules)
    for begin, end in zip([0, *sorted(cuts)], [*sorted(cuts), len(points)], strict=True):
        judge.add(history(points[begin:end]))
        judge.alerts()
    assert judge.alerts() == evaluate(rules, history(points))
