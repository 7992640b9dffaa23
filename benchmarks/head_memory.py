"""Memory and seconds of the head for one step at the paper's size: what verl's driver computes over the batch.

    python benchmarks/head_memory.py [--rows 8192] [--part-tokens N]

Synthetic rows of log-normal lengths with one at the limit go through the trainer's own `_compute_old_log_prob` (without
the workers' part), `_compute_advantage` and `_compute_metrics`, each in a process of its own, over a queue that holds
them in memory. It prints the queue's rows, and for each of the three the peak above them. A `--part-tokens` larger than
the batch is verl as it is.
"""

import multiprocessing
import os
import random
import resource
import time
from dataclasses import dataclass
from typing import Annotated, Any, Final

import typer
from paper_scale import LIMIT, RESPONSES, Engines, Task

from dapo_core.quantity import GIB

PROMPT: Final = 128
PHASES: Final = ("old_log_prob", "advantage", "metrics")


@dataclass(frozen=True)
class Measured:
    """`queue`: the batch as the queue holds it; `peak`: above that and the imports. Bytes and seconds."""

    queue: int
    peak: int
    seconds: float


class Queue:
    """TransferQueue's two calls, over rows in this process; what is written is dropped."""

    def __init__(self, lengths: list[int]) -> None:
        import torch

        def floats(length: int) -> Any:
            return torch.full((length,), -0.5)

        self.lengths, self.bytes = lengths, 0
        self.fields: dict[str, list[Any]] = {
            "prompts": [torch.ones(PROMPT, dtype=torch.int64) for _ in lengths],
            "responses": [torch.ones(length, dtype=torch.int64) for length in lengths],
            "input_ids": [torch.ones(PROMPT + length, dtype=torch.int64) for length in lengths],
            "position_ids": [torch.ones(PROMPT + length, dtype=torch.int64) for length in lengths],
            "response_mask": [torch.ones(length, dtype=torch.int64) for length in lengths],
            "loss_mask": [torch.ones(length, dtype=torch.int64) for length in lengths],
            "rm_scores": [_reward(row, length) for row, length in enumerate(lengths)],
            **{name: [floats(n) for n in lengths] for name in ("rollout_log_probs", "old_log_probs")},
            **{name: [floats(n) for n in lengths] for name in ("advantages", "returns")},
            **{name: [floats(PROMPT + n) for n in lengths] for name in ("log_probs", "entropy")},
        }
        self.bytes = sum(row.nbytes for rows in self.fields.values() for row in rows)

    def kv_batch_get(self, keys: list[str], partition_id: str, select_fields: list[str]) -> Any:
        import torch
        from tensordict import NonTensorStack, TensorDict

        rows = [int(key.split("_")[1]) for key in keys]
        found: dict[str, Any] = {
            name: torch.nested.as_nested_tensor([self.fields[name][row] for row in rows], layout=torch.jagged)
            for name in select_fields
            if name in self.fields
        }
        others: dict[str, list[Any]] = {"uid": [key.split("_")[0] for key in keys], "num_turns": [2] * len(keys)}
        found |= {name: NonTensorStack(*values) for name, values in others.items() if name in select_fields}
        return TensorDict(found, batch_size=len(rows))

    def kv_batch_put(self, keys: list[str], partition_id: str, fields: Any) -> Any:
        from transfer_queue import KVBatchMeta

        return KVBatchMeta(keys, [{} for _ in keys], partition_id, list(fields.keys()))


def _reward(row: int, length: int) -> Any:
    import torch

    scores = torch.zeros(length)
    scores[-1] = 1.0 if row % 3 else -1.0
    return scores


def lengths_of(rows: int) -> list[int]:
    engines = Engines(Task(0.0, 0.5), random.Random(1), 1)
    made: list[int] = []
    while len(made) < rows:
        made += engines._group().lengths
    return [LIMIT, *made[1:rows]]


def measure(phase: str, rows: int, part_tokens: int | None) -> Measured:
    """In this process, of which the peak is read: call it in a new one."""
    import transfer_queue
    from omegaconf import OmegaConf
    from verl.trainer.ppo.v1 import trainer_base

    from dapo_core.jobspec import parse_job
    from dapo_trainer.verl_adapter import batch_parts, trainers
    from dapo_trainer.verl_config import Paths, Placement, compose

    if part_tokens is not None:
        batch_parts.parts.__defaults__ = (part_tokens,)
        if part_tokens > rows * LIMIT:
            trainer_base.get_metric_data_with_optional_routed_experts = batch_parts._read_for_metrics
    files = {"source": "hf://a/b"}
    job = parse_job({**_HEADER, "spec": {"model": files, "data": {"train": [files]}}})
    trainer: Any = object.__new__(trainers.Colocated)
    trainer.config = compose(job.spec, Placement("cuda"), Paths("m", ("t",), (), "c"))
    OmegaConf.resolve(trainer.config.algorithm)
    trainer.global_steps = trainer.total_training_steps = 1
    trainer.use_critic, trainer._rollout_moe_lb_metrics_accumulator = False, None
    trainer.timing_raw, trainer._get_n_gpus_for_throughput = {"step": 1.0}, lambda: 1
    trainer.actor_rollout_wg = type("Workers", (), {"compute_log_prob": lambda _, batch: batch})()
    queue = Queue(lengths_of(rows))
    trainer_base.tq = trainers.tq = queue
    tags = [
        {"response_len": n, "loss_tokens": n, "seq_len": n + PROMPT, "min_global_steps": 0, "max_global_steps": 0}
        for n in queue.lengths
    ]
    keys = [f"p{row // RESPONSES}_{row}_0" for row in range(rows)]
    batch = transfer_queue.KVBatchMeta(keys, tags, "train")
    numbers: dict[str, Any] = {}
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    if phase == "old_log_prob":
        trainers.InParts._compute_old_log_prob(trainer, batch, numbers)
        trainers._describe_policy(batch, numbers)
    elif phase == "advantage":
        trainer._compute_advantage(batch, numbers)
    else:
        trainers.PPOTrainerSync._compute_metrics(trainer, batch, numbers, {"step": 1.0}, global_steps=1, epoch=0)
    after, seconds = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time() - start
    return Measured(queue.bytes, (after - before) * 1024, seconds)


_HEADER: Final = {"apiVersion": "dapo.io/v1alpha1", "kind": "DAPOJob", "metadata": {"name": "head"}}


def measured(rows: int, part_tokens: int | None = None) -> dict[str, Measured]:
    """By phase."""
    from dapo_trainer.verl_adapter import environment

    os.environ.update(environment("cpu"))
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        return {phase: pool.apply(measure, (phase, rows, part_tokens)) for phase in PHASES}


def main(
    rows: Annotated[int, typer.Option(help="Responses of a step.")] = 8192,
    part_tokens: Annotated[int | None, typer.Option(help="Padded tokens of a part. Default: the trainer's.")] = None,
) -> None:
    found = measured(rows, part_tokens)
    print(f"head: {next(iter(found.values())).queue / GIB:.2f} GiB in the data queue")
    for phase, of in found.items():
        print(f"head, {phase}: {of.seconds:.1f} CPU seconds, peak {of.peak / GIB:.2f} GiB")


if __name__ == "__main__":
    typer.run(main)
