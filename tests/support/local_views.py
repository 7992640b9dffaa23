"""Views that tests of the live view start from."""

import math
import random

from dapo_trainer.local.run_view import Note, View, with_attempt, with_event, with_heartbeat, with_step
from dapo_trainer.process.trainer_process import Heartbeat

NOW = 1_700_000_000.0
NOTES = (
    ("Started", "Attempt 1: process 4312"),
    ("Checkpoint", "step 40 committed, 11.3 MB"),
    ("Killed", "The trainer was killed (exit code 137)."),
    ("EntropyCollapse", "entropy 0.041 nats is below 0.05 for 10 steps"),
)


def empty() -> View:
    return View("arithmetic-20261121-0412-x7k2", "arithmetic-qwen2", "Separated", NOW - 430, 120, max_restarts=5)


def values(step: int, total: int = 120) -> dict[str, float]:
    """Numbers of a run that learns."""
    chance, share = random.Random(step), step / total
    accuracy = 0.28 + 0.55 * (1 - math.exp(-4 * share)) + chance.gauss(0, 0.03)
    found = {
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
        "perf/throughput": 12_345.0,
        "perf/time_per_step": 4.2,
        "timing_s/gen": 2.1,
        "timing_s/update_actor": 1.4,
        "timing_s/old_log_prob": 0.3,
        "timing_s/update_weights": 0.08,
        "actor/clip_fraction_high": 0.003,
        "actor/clip_fraction_low": 0.001,
        "actor/grad_norm": 0.412,
        "actor/lr": 5e-4,
    }
    return found | ({"val-core/addition/acc/mean@8": accuracy - 0.03} if step % 10 == 0 else {})


def trained(steps: int, restarts: int = 1) -> View:
    """A run after `steps` of its 120 steps, in the update of the next one."""
    view = with_attempt(empty(), 1 + restarts, restarts, NOW - 400)
    for index, (reason, message) in enumerate(NOTES):
        view = with_event(view, Note(NOW - 400 + index, reason, message, warning=index > 1))
    for step in range(1, steps + 1):
        view = with_step(view, 1 + restarts, step, NOW - 4.2 * (steps - step), values(step))
    return with_heartbeat(view, Heartbeat("update", steps + 1, 120, NOW - 3.2, "mini-batch 2 of 4"))
