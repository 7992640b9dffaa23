"""Metadata stores as pages meet them: runs of every kind, written through the store's own writer."""

import math
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import builders

from dapo_core.db import (
    AlertRow,
    AttemptRow,
    CheckpointRow,
    EventRow,
    MetadataWriter,
    Point,
    RunRow,
    WriteBatch,
    open_writer,
    upgrade,
)
from dapo_core.run import metrics
from dapo_core.run.guards import HEALTH_RULES

START = 1_790_000_000.0
SECONDS_PER_STEP = 60.0
Shape = Callable[[int], float]


def rising(step: int) -> float:
    """A curve like that of a run that learns."""
    return 1 - 1.6 * math.exp(-step / 25) + 0.03 * math.sin(step)


def falling(step: int) -> float:
    """A curve like entropy."""
    return 0.02 + 0.2 * math.exp(-step / 15)


SHAPES: Mapping[str, Shape] = {
    metrics.REWARD_GENERATED: rising,
    metrics.REWARD_TRAINED: lambda step: 0.7 * rising(step),
    metrics.ACCURACY_GENERATED: lambda step: 0.5 + rising(step) / 2,
    metrics.ACCURACY_TRAINED: lambda step: 0.5 + rising(step) / 3,
    metrics.LENGTH_MEAN: lambda step: 200 + 3 * step,
    metrics.LENGTH_MAX: lambda step: 400 + 6 * step,
    metrics.TRUNCATED: lambda step: 0.02,
    metrics.ENTROPY: falling,
    metrics.MEAN_PROBABILITY: lambda step: 1 - falling(step),
    metrics.GROUPS_ALL_WRONG: lambda step: 0.3 * falling(step),
    metrics.GROUPS_MIXED: lambda step: 1 - 0.3 * falling(step) - 0.2,
    metrics.GROUPS_ALL_RIGHT: lambda step: 0.2,
    metrics.GENERATION_BATCHES: lambda step: 1.4,
    metrics.GRADIENT_NORM: lambda step: 1 + 0.2 * math.cos(step),
    metrics.CLIP_FRACTION_HIGH: lambda step: 0.001,
    metrics.CLIP_FRACTION_LOW: lambda step: 0.002,
    metrics.KL: lambda step: 0.0004,
    metrics.MISMATCH: lambda step: 0.002,
    metrics.THROUGHPUT: lambda step: 2_000.0,
    metrics.STEP_SECONDS: lambda step: SECONDS_PER_STEP,
    "perf/total_num_tokens": lambda step: 10_000.0,
    "timing_s/gen": lambda step: 40.0,
    "timing_s/update_actor": lambda step: 20.0,
}


class Store:
    """A metadata store, in a folder if no URL is given, filled step by step."""

    def __init__(self, folder: Path, url: str | None = None) -> None:
        self.folder = folder
        self.url = url or f"sqlite:///{folder / 'dapo.db'}"
        upgrade(self.url)
        self.writer: MetadataWriter = open_writer(self.url)

    def run(self, run_id: str, *, steps: int = 0, state: str = "Running", total: int = 100, **more: Any) -> str:
        """A run with one attempt and `steps` steps."""
        spec = more.pop("spec", builders.dumped(builders.job()))
        self.writer.create_run(
            RunRow(
                run_id=run_id,
                name=more.pop("name", run_id),
                spec=spec,
                state=state,  # type: ignore[arg-type]
                created_at=more.pop("created_at", START),
                started_at=START,
                ended_at=START + steps * SECONDS_PER_STEP if state in ("Succeeded", "Failed", "Stopped") else None,
                total_steps=total,
                **more,
            )
        )
        self.attempt(run_id, 1, 0)
        self.steps(run_id, range(1, steps + 1))
        return run_id

    def attempt(self, run_id: str, number: int, step_from: int) -> None:
        """One more life of the run."""
        at = START + step_from * SECONDS_PER_STEP + number
        self.writer.start_attempt(AttemptRow(run_id, number, at, step_from=step_from))

    def steps(self, run_id: str, steps: Sequence[int], attempt: int = 1, shapes: Mapping[str, Shape] = SHAPES) -> None:
        """These steps of every curve."""
        self.writer.write(
            run_id,
            WriteBatch(
                points=[
                    Point.of(name, step, attempt, START + step * SECONDS_PER_STEP, shape(step))
                    for step in steps
                    for name, shape in shapes.items()
                ]
            ),
        )

    def event(self, run_id: str, reason: str, message: str, step: int | None = None, kind: str = "Normal") -> None:
        """Something that happened."""
        ts = START + (step or 0) * SECONDS_PER_STEP
        self.writer.write_events(run_id, [EventRow(run_id, f"{reason}-{step}", ts, kind, reason, message, 1, step)])  # type: ignore[arg-type]

    def checkpoint(self, run_id: str, step: int) -> None:
        """A committed checkpoint."""
        uri = f"file:///store/{run_id}/checkpoints/step-{step:06d}"
        ts = START + step * SECONDS_PER_STEP
        row = CheckpointRow(run_id, step, 1, "committed", uri, ts, 1_000_000, 3)
        self.writer.write(run_id, WriteBatch(checkpoints=[row]))

    def alert(
        self, run_id: str, rule: str = "EntropyCollapse", step: int = 5, message: str = "Entropy is low."
    ) -> None:
        """A rule that holds."""
        at = START + step * SECONDS_PER_STEP
        self.writer.raise_alert(AlertRow(run_id, rule, at, at, message, "Warn", first_step=step))


def restarted(store: Store, run_id: str = "restarted") -> str:
    """A run that was killed at step 30 and went on from the checkpoint of step 20."""
    store.run(run_id, steps=30)
    store.writer.end_attempt(run_id, 1, reason="Killed", message="The trainer was killed.", exit_code=137, counted=True)
    store.checkpoint(run_id, 20)
    store.attempt(run_id, 2, 20)
    store.steps(run_id, range(21, 41), attempt=2)
    return run_id


def failing(store: Store, run_id: str = "failing") -> str:
    """A run whose numbers were not finite from step 8 to 10, and which failed of it."""
    store.run(run_id, steps=7, state="Failed", reason="Guard", message="The gradient norm is not finite.")
    broken = {name: (lambda step: math.nan) for name in (metrics.GRADIENT_NORM, metrics.POLICY_LOSS)}
    store.steps(run_id, range(8, 11), shapes={**SHAPES, **broken})
    remedy = HEALTH_RULES["NonFinite"].remedy.replace("`", "")
    store.alert(run_id, "NonFinite", 8, f"actor/grad_norm is not finite at step 8. {remedy}")
    store.event(run_id, "Guard", "NonFinite holds.", 8, "Warning")
    return run_id


def many(store: Store, count: int) -> list[str]:
    """So many runs of ten steps, in three namespaces, with tags: one is written, the others are its copies."""
    shapes = {name: SHAPES[name] for name in (metrics.REWARD_GENERATED, metrics.ACCURACY_GENERATED, metrics.ENTROPY)}
    store.run("run-0000", total=20)
    store.steps("run-0000", range(1, 11), shapes=shapes)
    with sqlite3.connect(store.folder / "dapo.db") as connection:
        for table in ("runs", "attempts", "latest"):
            names = [row[1] for row in connection.execute(f"PRAGMA table_info({table})") if row[1] != "run_id"]
            connection.execute(
                "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?) "
                f"INSERT INTO {table} (run_id, {', '.join(names)}) "
                f"SELECT printf('run-%04d', n.i), {', '.join(names)} FROM {table}, n WHERE run_id = 'run-0000'",
                (count - 1,),
            )
        connection.execute(
            "INSERT INTO run_keys (run_key, run_id) SELECT abs(random() % 1000000000), run_id FROM runs "
            "WHERE run_id GLOB 'run-[0-9]*' AND run_id NOT IN (SELECT run_id FROM run_keys)"
        )
        names = [row[1] for row in connection.execute("PRAGMA table_info(curve_points)") if row[1] != "run_key"]
        connection.execute(
            f"INSERT OR IGNORE INTO curve_points (run_key, {', '.join(names)}) "
            f"SELECT copy.run_key, {', '.join(names)} FROM run_keys AS copy, curve_points "
            "WHERE copy.run_id GLOB 'run-[0-9]*' "
            "AND curve_points.run_key = (SELECT run_key FROM run_keys WHERE run_id = 'run-0000')"
        )
        connection.execute(
            "UPDATE runs SET name = 'job-' || (substr(run_id, 5) % 7), namespace = 'team-' || (substr(run_id, 5) % 3),"
            " state = CASE substr(run_id, 5) % 3 WHEN 0 THEN 'Running' WHEN 1 THEN 'Succeeded' ELSE 'Failed' END,"
            " created_at = created_at + substr(run_id, 5), tags = json_object('sweep', '' || (substr(run_id, 5) % 5))"
        )
    return [f"run-{index:04d}" for index in range(count)]
