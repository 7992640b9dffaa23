"""One training job on three sides: `dapo run`, plain verl and TRL, each run to its end and measured (step_time.py).

Plain verl gets the configuration `dapo plan` shows, with verl's own trainer, replay buffer, agent loop, router and
reward manager in place of ours. TRL runs in an environment of its own (scripts/bench-setup.sh).
"""

import json
import os
import re
import sqlite3
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from process_tree import Watch

from dapo_core.jobspec import DAPOJob, absolute_paths, parse_job, read_mapping

ROOT = Path(__file__).parents[1]
PHASES = ("step", "gen", "old_log_prob", "adv", "update_actor", "update_weights")
CORRECT = 0.8
REWARD = """
import time
from dapo_trainer.rewards.rule_rewards import math

def compute_score(data_source, solution_str, ground_truth, extra_info=None, **_):
    verdict = math(solution_str.replace("<|im_end|>", ""), ground_truth)
    with open({scores!r}, "a") as file:
        file.write(f"{{time.time()}} {{int(verdict.correct)}}\\n")
    return {{"score": verdict.score, "acc": float(verdict.correct)}}
"""
PLAIN = """
import os, sys
from omegaconf import OmegaConf
from dapo_trainer.verl_adapter import environment
os.environ.update(environment("cpu"))
from verl.trainer.main_ppo import TaskRunnerV1, run_ppo
run_ppo(OmegaConf.load(sys.argv[1]), task_runner_class=TaskRunnerV1)
"""


@dataclass
class Step:
    """`ended`: time.time(); `correct`: share of the responses generated for it, None where the side does not say."""

    ended: float
    seconds: dict[str, float]  # by phase
    correct: float | None = None


@dataclass
class Result:
    """Of one side. Seconds; bytes."""

    phases: dict[str, float]  # medians over all steps but the first
    steps: int
    to_first_step: float
    to_correct: float | None  # None: not reached in these steps
    processor_to_first_step: float
    processor_per_step: float  # after the first
    resident: int  # the largest sum of all processes' resident sets at once
    proportional: int  # the same of their proportional sets, in which shared pages count once


def result(begun: float, watch: Watch, steps: list[Step], reached: float | None = None) -> Result:
    """`reached`: when enough responses were correct, if that is not seen in the steps (time.time())."""
    enough = [step.ended for step in steps if step.correct is not None and step.correct >= CORRECT]
    reached = reached if reached is not None else min(enough, default=None)
    first, last = steps[0].ended, steps[-1].ended
    later = [step.seconds for step in steps[1:]]
    return Result(
        {name: statistics.median([s.get(name, 0.0) for s in later]) for name in PHASES} if later else {},
        len(steps),
        first - begun,
        None if reached is None else reached - begun,
        watch.used_by(first),
        (watch.used_by(last) - watch.used_by(first)) / max(len(later), 1),
        watch.tree.peak.resident,
        watch.tree.peak.proportional,
    )


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
    from dapo_trainer.verl_config.kernels import ATTENTION_KEY

    config = compose(job.spec, Placement("cpu"), fetch(job, folder))
    reward = folder / "reward.py"
    reward.write_text(REWARD.format(scores=str(folder / "scores.txt")))
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
        # Ours is for packed rows on processors; torch's with a mask would compute all pairs of a packed micro-batch.
        ATTENTION_KEY: "sdpa",
        "actor_rollout_ref.model.use_remove_padding": False,
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


def measured(command: list[str], environment: dict[str, str], log: Path) -> tuple[float, Watch]:
    """When the command began, and what it used; ends this process when it fails."""
    begun = time.time()
    with log.open("w") as sink:
        process = psutil.Popen(command, env=os.environ | environment, stdout=sink, stderr=subprocess.STDOUT)
    with Watch(process) as watch:
        code = process.wait()
    if code:
        sys.exit(f"{' '.join(command)} ended with {code}:\n{log.read_text()[-3000:]}")
    return begun, watch


def plain(job: DAPOJob, folder: Path) -> Result:
    """verl's console says when a step has ended, and its phases; the reward function, which responses are correct."""
    config = plain_config(job, folder)
    code = [sys.executable, "-c", STAMP, sys.executable, "-c", PLAIN, str(config)]
    log = folder / "plain.log"
    begun, watch = measured(code, {}, log)
    steps = []
    for at, line in re.findall(r"^([0-9.]+) .*?step:\d+ - (.*)$", log.read_text(), re.MULTILINE):
        seconds = {name: float(value) for name, value in re.findall(r"timing_s/(\w+):([0-9.e+-]+)", line)}
        steps.append(Step(float(at), seconds))
    scores = [line.split() for line in (folder / "scores.txt").read_text().splitlines()]
    return result(begun, watch, steps, _reached(scores, job.spec.batch.prompts * job.spec.batch.responses_per_prompt))


# Puts the time in front of each line of a command's output.
STAMP = """
import subprocess, sys, time
process = subprocess.Popen(sys.argv[1:], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
for line in process.stdout:
    print(time.time(), line, end="", flush=True)
sys.exit(process.wait())
"""


def _reached(scores: list[list[str]], batch: int) -> float | None:
    """When the first batch of consecutive responses was correct enough."""
    for end in range(batch, len(scores) + 1, batch):
        of = scores[end - batch : end]
        if sum(correct == "1" for _, correct in of) >= CORRECT * batch:
            return float(of[-1][0])
    return None


def ours(job: DAPOJob, folder: Path) -> Result:
    file = folder / "job.json"
    file.write_text(json.dumps(job.model_dump(by_alias=True, mode="json", exclude_none=True)))
    home = folder / "home"
    command = [str(Path(sys.executable).parent / "dapo"), "run", str(file), "--plain", "--quiet", "--home", str(home)]
    begun, watch = measured(command, {}, folder / "ours.log")
    with sqlite3.connect(home / "dapo.db") as database:
        rows = database.execute(
            "select step, ts, name, value from curve_points join metric_names using (metric_id)"
            " where name like 'timing_s/%' or name = 'dapo/accuracy/generated' order by step"
        ).fetchall()
    steps: dict[int, Step] = {}
    for number, at, name, value in rows:
        step = steps.setdefault(number, Step(at, {}))
        if name.startswith("timing_s/"):
            step.seconds[name.removeprefix("timing_s/")] = value
        else:
            step.correct = value
    return result(begun, watch, [step for step in steps.values() if "step" in step.seconds])


def trl(job: DAPOJob, folder: Path) -> Result:
    python = subprocess.run([ROOT / "scripts" / "bench-setup.sh"], check=True, capture_output=True, text=True)
    settings, rows = folder / "settings.json", folder / "rows.json"
    settings.write_text(json.dumps(_settings_of_trl(job, folder)))
    paths = os.pathsep.join(str(ROOT / name) for name in ("core", "trainer"))
    command = [python.stdout.strip(), str(ROOT / "benchmarks" / "trl_side.py"), str(settings), str(rows)]
    begun, watch = measured(command, {"PYTHONPATH": paths, "HF_HUB_OFFLINE": "1"}, folder / "trl.log")
    steps = [
        Step(row["ended"], {name: row[name] for name in PHASES if name in row}, row["correct"])
        for row in json.loads(rows.read_text())
    ]
    return result(begun, watch, steps)


def _settings_of_trl(job: DAPOJob, folder: Path) -> dict[str, Any]:
    from dapo_trainer.preflight import fetch

    spec, paths = job.spec, fetch(job, folder)
    penalty = spec.algorithm.overlong.penalty
    assert spec.reward.type == "math" and spec.algorithm.kl_coefficient == 0, "trl_side.py knows no other job"
    return {
        "model": paths.model, "dtype": spec.model.dtype, "seed": spec.data.seed,
        "gradient_checkpointing": spec.model.gradient_checkpointing,
        "train": list(paths.train),
        "clip_low": spec.algorithm.clip_low, "clip_high": spec.algorithm.clip_high,
        "penalty": penalty.model_dump(exclude={"enabled"}) if penalty is not None and penalty.enabled else None,
        "responses_per_prompt": spec.batch.responses_per_prompt, "updates": spec.batch.updates_per_step,
        "mini_batch": spec.batch.mini_batch_responses, "max_response_tokens": spec.batch.max_response_tokens,
        "temperature": spec.batch.temperature, "top_p": spec.batch.top_p,
        "learning_rate": spec.optimizer.learning_rate, "warmup_steps": spec.optimizer.warmup_steps,
        "weight_decay": spec.optimizer.weight_decay, "gradient_clip": spec.optimizer.gradient_clip,
        "steps": spec.schedule.steps,
    }  # fmt: skip


SIDES: dict[str, Callable[[DAPOJob, Path], Result]] = {"ours": ours, "verl": plain, "trl": trl}
