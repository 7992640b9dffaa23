"""Both placements of the paper's algorithm and its baseline, on real verl and vLLM."""

from collections.abc import Callable
from typing import Any

import pytest
from real_run import DapoRun

pytestmark = pytest.mark.timeout(900)
SEPARATED = {"topology__mode": "Separated", "topology__trainer__gpusPerPod": 2, "topology__rollout__replicas": 2}
GRPO = {"algorithm": {"preset": "grpo", "klCoefficient": 0.01}, "optimizer__warmupSteps": 0}


@pytest.mark.parametrize(
    ("fields", "kept_groups_are_mixed"),
    [
        pytest.param(SEPARATED, True, id="two-ranks-and-two-separate-engines"),
        pytest.param(GRPO | {"topology__trainer__gpusPerPod": 2}, False, id="grpo-with-kl-on-two-ranks"),
    ],
)
def test_a_short_run_reports_every_curve(
    dapo: Callable[..., DapoRun], fields: dict[str, Any], kept_groups_are_mixed: bool
) -> None:
    run = dapo(schedule__steps=3, **fields)
    assert run.end(400) == 0, run.tail()
    values = {
        name: value
        for name, value in run.query(
            "select name, value from points join metric_names using (metric_id) where step = 3 and flag is null"
        )
    }
    expected = {
        "actor/entropy", "actor/grad_norm", "actor/lr", "actor/ppo_kl", "actor/clip_fraction_high",
        "actor/clip_fraction_low", "dapo/mean_probability", "dapo/accuracy/generated", "dapo/accuracy/trained",
        "dapo/reward/generated", "critic/score/mean", "response_length/mean", "response_length/max",
        "response_length/clip_ratio", "dapo/groups/all_wrong", "dapo/groups/mixed", "dapo/groups/all_right",
        "dapo/generation_batches", "training/rollout_probs_diff_mean", "perf/throughput", "perf/time_per_step",
        "timing_s/gen", "timing_s/old_log_prob", "timing_s/update_actor", "timing_s/update_weights",
        "val-core/arithmetic/acc/mean@2", "val-core/arithmetic/acc/best@2/mean", "val-core/arithmetic/acc/maj@2/mean",
    }  # fmt: skip
    assert expected <= values.keys(), sorted(expected - values.keys())
    shares = [values[f"dapo/groups/{kind}"] for kind in ("all_wrong", "mixed", "all_right", "lost")]
    assert sum(shares) == pytest.approx(1.0)
    assert (values["dapo/accuracy/trained"] not in (0.0, 1.0)) or not kept_groups_are_mixed
