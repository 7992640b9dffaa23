"""Seconds per step, plain verl's `main_ppo` against `dapo run`, on the same job, model, data and machine.

    python benchmarks/step_time.py [JOB.YAML] [--steps 8] [--rounds 1]

Plain verl gets the configuration `dapo plan` shows, with verl's own trainer, replay buffer, agent loop, router and
reward manager in place of ours. Both report `timing_s/step`, which verl measures; the first step is left out (it
includes late start-up). Prints medians, the ratio, and the time by phase.
"""

import argparse
import json
import os
import platform
import re
import sqlite3
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from dapo_core.jobspec import DAPOJob, absolute_paths, parse_job, read_mapping

ROOT = Path(__file__).parents[1]
PHASES = ("step", "gen", "old_log_prob", "adv", "update_actor", "update_weights")
REWARD = """
from dapo_trainer.rewards.rule_rewards import math

def compute_score(data_source, solution_str, ground_truth, extra_info=None, **_):
    verdict = math(solution_str.replace("<|im_end|>", ""), ground_truth)
    return {"score": verdict.score, "acc": float(verdict.correct)}
"""
PLAIN = """
import os, sys
from omegaconf import OmegaConf
from dapo_trainer.verl_adapter import environment
os.environ.update(environment("cpu"))
from verl.trainer.main_ppo import TaskRunnerV1, run_ppo
run_ppo(OmegaConf.load(sys.argv[1]), task_runner_class=TaskRunnerV1)
"""


def job_with(path: Path, steps: int) -> DAPOJob:
    data = read_mapping(path)
    data["spec"]["schedule"] = {
        "steps": steps, "validateBefore": False, "validateEvery": 100_000, "checkpointEvery": 100_000,
        "logSamplesEvery": 100_000,
    }  # fmt: skip
    return parse_job(absolute_paths(data, path.resolve().parent))


def plain_config(job: DAPOJob, folder: Path) -> Path:
    """verl's configuration of the job, with verl's own parts in place of the platform's."""
    from omegaconf import OmegaConf

    from dapo_trainer.preflight import fetch
    from dapo_trainer.verl_config import Placement, compose

    config = compose(job.spec, Placement("cpu"), fetch(job, folder, None))
    reward = folder / "reward.py"
    reward.write_text(REWARD)
    penalty = job.spec.algorithm.overlong.penalty
    changes: dict[str, Any] = {
        "trainer.v1.trainer_mode": "sync",
        "trainer.v1.sampler.custom_sampler.path": None,
        "trainer.checkpoint_callback_class": None,
        "trainer.logger": ["console"],
        "trainer.val_before_train": False,
        "trainer.test_freq": -1,
        "trainer.save_freq": -1,
        "actor_rollout_ref.rollout.agent.agent_loop_manager_class": None,
        "actor_rollout_ref.rollout.router_config_path": None,
        "actor_rollout_ref.actor.policy_loss.loss_mode": "vanilla",
        "actor_rollout_ref.model.external_lib": None,
        "reward.num_workers": 1,
        "reward.custom_reward_function.path": str(reward),
        "reward.reward_manager.name": "dapo",
    }
    if penalty is not None:
        changes["reward.reward_kwargs"] = {
            "overlong_buffer_cfg": {
                "enable": True, "len": penalty.cache_tokens, "penalty_factor": penalty.factor, "log": False,
            },
            "max_resp_len": job.spec.batch.max_response_tokens,
        }  # fmt: skip
    for key, value in changes.items():
        OmegaConf.update(config, key, value, merge=False, force_add=True)
    del config["dapo"]
    path = folder / "plain.yaml"
    path.write_text(OmegaConf.to_yaml(config))
    return path


def plain(job: DAPOJob, folder: Path) -> list[dict[str, float]]:
    """Seconds by phase of each step but the first, from verl's console log."""
    log = folder / "plain.log"
    with log.open("w") as sink:
        subprocess.run(
            [sys.executable, "-c", PLAIN, str(plain_config(job, folder))],
            stdout=sink,
            stderr=subprocess.STDOUT,
            check=True,
        )
    lines = re.findall(r"^.*?step:(\d+) - (.*)$", log.read_text(), re.MULTILINE)
    steps = [dict(re.findall(r"timing_s/(\w+):([0-9.e+-]+)", rest)) for _, rest in lines]
    return [{name: float(value) for name, value in step.items()} for step in steps[1:]]


def ours(job: DAPOJob, folder: Path) -> list[dict[str, float]]:
    file = folder / "job.json"
    file.write_text(json.dumps(job.model_dump(by_alias=True, mode="json", exclude_none=True)))
    home = folder / "home"
    command = [str(Path(sys.executable).parent / "dapo"), "run", str(file), "--plain", "--quiet", "--home", str(home)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    with sqlite3.connect(home / "dapo.db") as database:
        rows = database.execute(
            "select step, name, value from points join metric_names using (metric_id) where name like 'timing_s/%'"
        ).fetchall()
    steps: dict[int, dict[str, float]] = {}
    for step, name, value in rows:
        steps.setdefault(step, {})[name.removeprefix("timing_s/")] = value
    return [values for step, values in sorted(steps.items()) if step > 1 and "step" in values]


def medians(steps: list[dict[str, float]]) -> dict[str, float]:
    return {name: statistics.median([step.get(name, 0.0) for step in steps]) for name in PHASES}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("job", nargs="?", type=Path, default=ROOT / "examples" / "arithmetic.yaml")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=1, help="pairs of runs, taken in turn")
    arguments = parser.parse_args()
    job = job_with(arguments.job, arguments.steps)
    ours_steps: list[dict[str, float]] = []
    plain_steps: list[dict[str, float]] = []
    for _ in range(arguments.rounds):
        with tempfile.TemporaryDirectory() as folder:
            plain_steps += plain(job, Path(folder))
        with tempfile.TemporaryDirectory() as folder:
            ours_steps += ours(job, Path(folder))
    theirs, mine = medians(plain_steps), medians(ours_steps)
    print(f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    print(f"{arguments.job.name}: {job.spec.batch.prompts} prompts x {job.spec.batch.responses_per_prompt} responses")
    print(f"{'median seconds':<16}{'plain verl':>12}{'dapo run':>12}{'ratio':>8}")
    for name in PHASES:
        ratio = mine[name] / theirs[name] if theirs[name] else float("nan")
        print(f"{name:<16}{theirs[name]:>12.2f}{mine[name]:>12.2f}{ratio:>8.2f}")
    print(f"{len(plain_steps)} and {len(ours_steps)} steps counted")


if __name__ == "__main__":
    main()
