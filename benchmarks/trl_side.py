"""TRL's `GRPOTrainer` on a job of ours, for step_time.py; runs in the environment of scripts/bench-setup.sh.

    python benchmarks/trl_side.py SETTINGS.JSON RESULT.JSON

Loss, clips, optimizer, model, prompts and reward are those of the job; generation is by transformers, which is what TRL
uses where no other engine is asked for. TRL has no dynamic sampling: it trains on every group of a batch.
"""

import json
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from datasets import Dataset
from pyarrow import parquet
from transformers import AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from dapo_trainer.rewards.rule_rewards import math
from dapo_trainer.rewards.scorer import SoftPenalty


class Timed(GRPOTrainer):
    """Seconds of each part of a step, under the names of verl's `timing_s`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        super().__init__(*args, **kwargs)

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        begun = time.time()
        yield
        self.seconds[name] += time.time() - begun

    def _generate(self, *args: Any, **kwargs: Any) -> Any:
        with self._timed("gen"):
            return super()._generate(*args, **kwargs)

    def _generate_and_score_completions(self, *args: Any, **kwargs: Any) -> Any:
        with self._timed("batch"):
            return super()._generate_and_score_completions(*args, **kwargs)


class Steps(TrainerCallback):
    """A step is what ours is: a batch generated, and all updates with it."""

    def __init__(self, updates: int) -> None:
        self.updates = updates
        self.rows: list[dict[str, float]] = []
        self.correct: list[bool] = []  # of the batch of this step
        self.trainer: Timed | None = None
        self._began = 0.0

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self._began = time.time()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step % self.updates:
            return
        assert self.trainer is not None
        now, parts = time.time(), self.trainer.seconds
        step = now - self._began
        self.rows.append({
            "ended": now, "correct": sum(self.correct) / len(self.correct), "step": step, "gen": parts["gen"],
            "old_log_prob": parts["batch"] - parts["gen"], "update_actor": step - parts["batch"],
        })  # fmt: skip
        self.correct, self._began = [], now
        parts.clear()


def reward_of(settings: dict[str, Any], steps: Steps) -> Any:
    penalty = SoftPenalty(**settings["penalty"]) if settings["penalty"] else None

    def reward(completions: Sequence[Any], completion_ids: Sequence[Sequence[int]], truth: Sequence[str], **_: Any):  # type: ignore[no-untyped-def]
        verdicts = [math(text[0]["content"], label) for text, label in zip(completions, truth, strict=True)]
        steps.correct += [verdict.correct for verdict in verdicts]
        lengths = [len(ids) for ids in completion_ids]
        return [v.score + (penalty(n) if penalty else 0.0) for v, n in zip(verdicts, lengths, strict=True)]

    return reward


def configuration(settings: dict[str, Any], folder: Path) -> GRPOConfig:
    updates = settings["updates"]
    return GRPOConfig(
        output_dir=str(folder), use_cpu=True, bf16=False, gradient_checkpointing=settings["gradient_checkpointing"],
        model_init_kwargs={"dtype": settings["dtype"], "attn_implementation": "sdpa"},
        loss_type="dapo", epsilon=settings["clip_low"], epsilon_high=settings["clip_high"], beta=0.0,
        num_generations=settings["responses_per_prompt"], per_device_train_batch_size=settings["mini_batch"],
        steps_per_generation=updates, gradient_accumulation_steps=1, num_iterations=1,
        max_steps=settings["steps"] * updates, max_completion_length=settings["max_response_tokens"],
        temperature=settings["temperature"], top_p=settings["top_p"], top_k=0,
        learning_rate=settings["learning_rate"], lr_scheduler_type="constant_with_warmup",
        warmup_steps=settings["warmup_steps"] * updates, weight_decay=settings["weight_decay"],
        max_grad_norm=settings["gradient_clip"], seed=settings["seed"],
        report_to=[], save_strategy="no", logging_steps=updates, disable_tqdm=True,
    )  # fmt: skip


def main() -> None:
    source, result = map(Path, sys.argv[1:])
    settings = json.loads(source.read_text())
    rows = [row for file in settings["train"] for row in parquet.read_table(file).to_pylist()]
    prompts = [{"prompt": row["prompt"], "truth": row["reward_model"]["ground_truth"]} for row in rows]
    steps = Steps(settings["updates"])
    trainer = Timed(
        model=settings["model"],
        reward_funcs=reward_of(settings, steps),
        args=configuration(settings, result.parent / "trl"),
        train_dataset=Dataset.from_list(prompts),
        processing_class=AutoTokenizer.from_pretrained(settings["model"], padding_side="left"),
        callbacks=[steps],
    )
    steps.trainer = trainer
    trainer.train()
    result.write_text(json.dumps(steps.rows))


if __name__ == "__main__":
    main()
