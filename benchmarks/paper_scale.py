"""Batches at the paper's size, without an engine: the real buffer and verl's balancing, on synthetic responses.

    python benchmarks/paper_scale.py [--prompts 512] [--steps 20]

Prompts have a difficulty; responses have log-normal lengths up to the limit, the longer the harder the prompt is, at
three strengths; a base model solves little and a trained one much. It prints, for each of them, groups generated per
group trained and the ideal, the worst step in batches and what that step needed, how often a step asked for prompts and
its time (in tokens of one response), the mean length of the first and the last mini-batch, their truncated shares, the
weight of a token in the first against one in the last, and the share of stale responses; then the CPU seconds and peak
memory of the driver's part of it, and those of the head for one step (head_memory.py).
"""

import heapq
import math
import random
import resource
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from types import SimpleNamespace
from typing import Annotated, Any, Final

import typer

from dapo_trainer.groups.dynamic_sampling import GroupOutcome, Kind
from dapo_trainer.groups.group_records import GroupRecords
from dapo_trainer.verl_adapter import group_buffer, session
from dapo_trainer.verl_adapter.group_buffer import TRAIN, GroupBuffer

RESPONSES: Final = 16
LIMIT: Final = 20_480
MEDIAN: Final = 3_000
MINI_BATCHES: Final = 16
RANKS: Final = 16
SLOTS: Final = 512  # groups that the engines generate at a time


@dataclass(frozen=True)
class Task:
    """`skill`: log-odds of solving a prompt of medium difficulty; `correlation`: of length with difficulty, 0 to 1."""

    skill: float
    correlation: float


@dataclass
class Engines:
    """Stands for the session's groups: `take` moves a clock to the next group that finishes."""

    task: Task
    rng: random.Random
    slots: int
    step: int = 0
    now: float = 0.0
    made: int = 0
    asked: int = 0
    mixed: list[bool] = field(default_factory=list)  # each prompt's, in the order of submission
    running: list[tuple[float, int, GroupOutcome]] = field(default_factory=list)
    free: list[float] = field(default_factory=list)

    def refill(self, count: int) -> int:
        self.asked += count > 0
        for _ in range(count):
            start = self.now if len(self.free) < self.slots else max(self.now, heapq.heappop(self.free))
            self.made += 1
            group = self._group()
            self.mixed.append(group.kind is Kind.MIXED)
            end = start + max(group.lengths)
            heapq.heappush(self.free, end)
            heapq.heappush(self.running, (end, group.order, group))
        return count

    def needed(self, generated: int, groups: int) -> int:
        """How many of the newest `generated` prompts, in the order of submission, have `groups` mixed groups."""
        found = [place for place, mixed in enumerate(self.mixed[-generated:], 1) if mixed] if generated else []
        return found[groups - 1] if groups > 0 else 0

    def in_flight(self, _partition: str) -> int:
        return len(self.running)

    def take(self, _partition: str, _timeout: float) -> list[GroupOutcome]:
        self.now, _, group = heapq.heappop(self.running)
        return [group]

    def _group(self) -> GroupOutcome:
        difficulty, uid = self.rng.gauss(0, 1), f"p{self.made}"
        right = 1 / (1 + math.exp(3 * difficulty - self.task.skill))
        correct = sum(self.rng.random() < right for _ in range(RESPONSES))
        lengths = tuple(self._length(difficulty) for _ in range(RESPONSES))
        tags = tuple({"seq_len": length, "step": self.step} for length in lengths)
        keys = tuple(f"{uid}_{number}_0" for number in range(RESPONSES))
        rewards = tuple(1.0 if number < correct else -1.0 for number in range(RESPONSES))
        return GroupOutcome(
            uid, correct, rewards, lengths, truncated=lengths.count(LIMIT), keys=keys, tags=tags, order=self.made
        )

    def _length(self, difficulty: float) -> int:
        own = math.sqrt(1 - self.task.correlation**2) * self.rng.gauss(0, 1)
        return min(LIMIT, max(1, round(MEDIAN * math.exp(0.9 * (self.task.correlation * difficulty + own)))))


@dataclass(frozen=True)
class Result:
    """Over the steps after the first, which does not know the acceptance rate yet; lengths in tokens."""

    generated_per_trained: float
    ideal: float
    worst_step: float  # in batches
    worst_need: float  # batches that this step could not do without: its prompts up to the last one of the batch
    asks: float  # how often a step asked for prompts
    generation: float  # time of a step, in tokens
    first_length: float
    last_length: float
    first_truncated: float
    last_truncated: float
    token_weight: float  # of a token in the first mini-batch, one in the last is 1
    stale: float


def simulate(task: Task, prompts: int, steps: int, surplus: str = "Discard", seed: int = 1) -> Result:
    """Train `steps` steps of `prompts` prompts, in Colocated mode."""
    engines = Engines(task, random.Random(seed), SLOTS)
    sampling = {
        "enabled": True,
        "filter_by": "accuracy",
        "max_generation_batches": 10,
        "on_exhausted": "Fail",
        "surplus": surplus,
    }
    stop = SimpleNamespace(is_set=lambda: False)
    settings: Mapping[str, Any] = {"dynamic_sampling": sampling, "seed": seed, "max_staleness": None}
    before = session._current, group_buffer.tq
    current = SimpleNamespace(
        settings=settings, groups=engines, stop=stop, while_waiting=lambda: None, records=GroupRecords()
    )
    session._current = current  # type: ignore[assignment]
    group_buffer.tq = SimpleNamespace(kv_clear=lambda **_: None)
    try:
        return _train(GroupBuffer("dapo_colocated", engines.refill), engines, prompts, steps)
    finally:
        session._current, group_buffer.tq = before


def _train(buffer: GroupBuffer, engines: Engines, prompts: int, steps: int) -> Result:
    generated: list[int] = []
    needs: list[int] = []
    times: list[float] = []
    asked: list[int] = []
    kept = stale = rows = 0
    first: list[int] = []
    last: list[int] = []
    for step in range(1, steps + 1):
        engines.step = step
        begun, before = engines.now, engines.asked
        carried = buffer.carried
        engines.refill(buffer.begin_step(step, prompts))
        batch, _ = buffer.sample(step, TRAIN, prompts)
        if step == 1:
            continue
        times.append(engines.now - begun)
        asked.append(engines.asked - before)
        generated.append(buffer.tally.generated)
        needs.append(engines.needed(buffer.tally.generated, prompts - carried))
        kept += buffer.tally.trained + buffer.tally.dropped + buffer.carried - carried
        stale += sum(tag["step"] < step for tag in batch.tags)
        rows += len(batch.tags)
        mini_batches = _mini_batches([tag["seq_len"] for tag in batch.tags])
        first += mini_batches[0]
        last += mini_batches[-1]
    return Result(
        generated_per_trained=sum(generated) / (prompts * len(generated)),
        ideal=sum(generated) / kept,
        worst_step=max(generated) / prompts,
        worst_need=max(zip(generated, needs, strict=True))[1] / prompts,
        asks=fmean(asked),
        generation=fmean(times),
        first_length=fmean(first),
        last_length=fmean(last),
        first_truncated=first.count(LIMIT) / len(first),
        last_truncated=last.count(LIMIT) / len(last),
        token_weight=sum(last) / sum(first),
        stale=stale / rows,
    )


def _mini_batches(lengths: Sequence[int]) -> list[list[int]]:
    """As verl cuts them: balanced over the ranks, and each rank's rows in their order."""
    import torch
    from verl.utils.seqlen_balancing import calculate_workload, get_seqlen_balanced_partitions

    work = calculate_workload(torch.tensor(lengths, dtype=torch.int64))
    ranks = get_seqlen_balanced_partitions(work, k_partitions=RANKS, equal_size=True)
    size = len(lengths) // RANKS // MINI_BATCHES
    return [
        [lengths[row] for rank in ranks for row in rank[start : start + size]]
        for start in range(0, size * MINI_BATCHES, size)
    ]


TASKS: Final[Sequence[tuple[str, Task]]] = [
    (f"{model}, correlation {correlation}", Task(skill, correlation))
    for model, skill in (("base", -3.0), ("trained", 2.0))
    for correlation in (0.0, 0.5, 0.9)
]


def main(
    prompts: Annotated[int, typer.Option(help="Prompts of a step.")] = 512,
    steps: Annotated[int, typer.Option(help="Steps of each task.")] = 20,
) -> None:
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    print(
        "| task | surplus | generated per trained | ideal | worst step, batches | it needed "
        "| asked for prompts, times | time | length: first | last | truncated: first | last "
        "| token weight, first : last | stale |"
    )
    print("|---" * 14 + "|")
    for name, task in TASKS:
        for surplus in ("Discard", "Carry"):
            r = simulate(task, prompts, steps, surplus)
            print(
                f"| {name} | {surplus} | {r.generated_per_trained:.2f} | {r.ideal:.2f} | {r.worst_step:.2f} "
                f"| {r.worst_need:.2f} | {r.asks:.1f} | {r.generation:.0f} "
                f"| {r.first_length:.0f} | {r.last_length:.0f} "
                f"| {r.first_truncated:.1%} | {r.last_truncated:.1%} | {r.token_weight:.2f} | {r.stale:.0%} |",
                flush=True,
            )
    peak, seconds = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, time.process_time() - start
    trained = 2 * len(TASKS) * steps
    print(
        f"\ndriver: {seconds / trained:.2f} CPU seconds a step with its synthetic responses, peak {peak / 1024:.0f} MiB"
    )
    import head_memory

    head_memory.main(rows=prompts * RESPONSES)


if __name__ == "__main__":
    typer.run(main)
