"""Metrics of a run that learns: what the fake trainer reports, and what views of it start from."""

import math
import random


def step_metrics(step: int, total: int, seconds: float) -> dict[str, float]:
    """The metrics of one step of `total`, which took `seconds`; the same for the same step."""
    chance, share = random.Random(step), step / max(1, total)
    accuracy = min(1.0, 0.28 + 0.55 * (1 - math.exp(-4 * share)) + chance.gauss(0, 0.03))
    return {
        "dapo/accuracy/generated": accuracy,
        "dapo/reward/generated": 2 * accuracy - 1,
        "critic/score/mean": chance.gauss(0, 0.1),
        "response_length/mean": 20 + 8 * share + chance.gauss(0, 0.7),
        "response_length/max": 31.0,
        "response_length/clip_ratio": 0.02,
        "actor/entropy": 0.5 * math.exp(-2 * share) + chance.gauss(0, 0.01),
        "dapo/mean_probability": 0.7 + 0.2 * share,
        "dapo/groups/all_wrong": 0.3 * (1 - share),
        "dapo/groups/mixed": 0.5,
        "dapo/groups/all_right": 0.2 + 0.3 * share,
        "dapo/generation_batches": 2.0,
        "dapo/accuracy/trained": 0.5 + chance.gauss(0, 0.03),
        "actor/clip_fraction_high": 0.003,
        "actor/clip_fraction_low": 0.001,
        "actor/grad_norm": 0.412,
        "actor/lr": 5e-4,
        "perf/throughput": 12_345.0,
        "perf/time_per_step": seconds,
        "timing_s/gen": seconds * 0.5,
        "timing_s/old_log_prob": seconds * 0.1,
        "timing_s/update_actor": seconds * 0.35,
        "timing_s/update_weights": seconds * 0.05,
    }
