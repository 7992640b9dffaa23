"""The replay buffer by groups on a stage: TransferQueue as a dictionary, and the rollout as a thread."""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from dapo_trainer.groups.dynamic_sampling import GroupOutcome
from dapo_trainer.verl_adapter import group_buffer, session
from dapo_trainer.verl_adapter.group_buffer import GroupBuffer
from dapo_trainer.verl_adapter.session import Session

G = 4
TRAIN = "train"
Items = dict[str, dict[str, Any]]


@dataclass
class Queue:
    """TransferQueue's calls that the buffer makes, on a dictionary of tags."""

    items: Items = field(default_factory=dict)

    def kv_list(self, partition_id: str) -> dict[str, Items]:
        return {partition_id: dict(self.items)} if self.items else {}

    def kv_clear(self, keys: Iterable[str], partition_id: str) -> None:
        for key in keys:
            del self.items[key]  # clearing what is not there would be a mistake of the buffer

    def kv_batch_put(self, keys: list[str], partition_id: str, tags: list[dict[str, Any]]) -> None:
        for key, tag in zip(keys, tags, strict=True):
            self.items[key] |= tag


@dataclass
class News:
    """A report that keeps its events."""

    events: list[tuple[str, str, int | None]] = field(default_factory=list)

    def event(self, type: str, reason: str, message: str, step: int | None = None) -> None:
        self.events.append((reason, message, step))

    def phase(self, phase: str, step: int, total_steps: int, detail: str = "") -> None: ...
    def step(self, step: int, values: Mapping[str, float]) -> None: ...
    def samples(self, step: int, rows: Any) -> None: ...
    def groups(self, step: int, groups: Any, responses: Any) -> None: ...
    def checkpoint(self, step: int, folder: Path, metrics: Mapping[str, float]) -> None: ...


@dataclass
class Rollout:
    """Generates groups in a thread, with as many correct responses each as `answers` says, then `then`."""

    session: Session
    queue: Queue
    answers: Iterator[int | None]
    then: int | None = 2
    made: int = 0
    outcomes: list[GroupOutcome] = field(default_factory=list)

    def __call__(self, count: int) -> int:
        uids = [f"p{self.made + i}" for i in range(count)]
        self.made += count
        self.session.groups.submit(TRAIN, uids)
        for uid in uids:
            self.queue.items[uid] = {"is_prompt": True, "status": "pending"}
        outcomes = [self.generate(uid, next(self.answers, self.then)) for uid in uids]
        self.outcomes += outcomes
        threading.Thread(target=self.session.groups.finish, args=(TRAIN, outcomes), daemon=True).start()
        return count

    def generate(self, uid: str, correct: int | None) -> GroupOutcome:
        if correct is None:
            return GroupOutcome(uid, 0, (), (), failures=G)
        keys = tuple(f"{uid}_{i}_0" for i in range(G))
        tags = tuple({"seq_len": 5, "of": uid} for _ in range(G))
        self.queue.items |= dict(zip(keys, tags, strict=True))
        rewards = tuple(1.0 if i < correct else -1.0 for i in range(G))
        spread = max(rewards) - min(rewards)
        return GroupOutcome(uid, correct, rewards, (5,) * G, spread=spread, keys=keys, tags=tags)


@dataclass
class Stage:
    queue: Queue
    news: News
    session: Session
    rollout: Rollout
    buffer: GroupBuffer

    def step(self, batch: int, number: int = 1) -> Any:
        """A colocated step: ask, wait, take."""
        if missing := self.buffer.begin_step(number, batch):
            self.rollout(missing)
        return self.buffer.sample(number, TRAIN, batch)[0]


Build = Callable[..., Stage]


def build_stage(
    patch: pytest.MonkeyPatch,
    mode: str = "dapo_colocated",
    answers: Iterable[int | None] = (),
    then: int | None = 2,
    enabled: bool = True,
    cap: int = 10,
    on_exhausted: str = "TrainPartial",
    surplus: str = "Carry",
    filter_by: str = "accuracy",
    max_staleness: int | None = None,
) -> Stage:
    queue, news = Queue(), News()
    sampling = {
        "enabled": enabled,
        "filter_by": filter_by,
        "max_generation_batches": cap,
        "on_exhausted": on_exhausted,
        "surplus": surplus,
    }
    opened = Session(news, {"dynamic_sampling": sampling, "seed": 1, "max_staleness": max_staleness})
    patch.setattr(session, "_current", opened)
    patch.setattr(group_buffer, "WAKE_SECONDS", 0.02)
    patch.setattr(group_buffer, "tq", queue)
    rollout = Rollout(opened, queue, iter(answers), then)
    return Stage(queue, news, opened, rollout, GroupBuffer(mode, rollout, trainer_config={}))


def groups_of(batch: Any) -> list[str]:
    return list(dict.fromkeys(key.split("_")[0] for key in batch.keys))
