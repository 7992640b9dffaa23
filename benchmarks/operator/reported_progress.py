"""Progress as the trainers of all jobs would report it: a step at a time, in Postgres."""

import threading
import time
from collections.abc import Sequence
from itertools import cycle
from typing import Final

from servers.postgres import PostgresServer

from dapo_core.db import AttemptRow, Point, RunRow, WriteBatch, open_writer
from dapo_core.run.metrics import ENTROPY

# The metrics of a step that operator and guards read, and as many as a trainer writes besides.
METRICS: Final = (
    ENTROPY,
    "dapo/reward/generated",
    "dapo/accuracy/generated",
    "dapo/mean_probability",
    "dapo/groups/mixed_share",
    "response_length/mean",
    "actor/pg_loss",
    "actor/grad_norm",
    "timing_s/step",
)


class Training:
    """Runs of a metadata store, each of which finishes a step every `step_seconds` while they train."""

    def __init__(self, step_seconds: float) -> None:
        self._server = PostgresServer(fsync=False)
        self._step_seconds = step_seconds
        self._going, self._stopped = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        self.url = ""
        self.steps = 0

    def open(self) -> str:
        """Start the server. Returns the URL of its database, which has the tables."""
        self._server.start()
        self.url = self._server.new_database(upgraded=True)
        return self.url

    def record(self, jobs: Sequence[tuple[str, str, str]]) -> None:
        """Record a run for each (namespace, name, run ID), with its first attempt, and train all until `close`."""
        writer = open_writer(self.url)
        now = time.time()
        for namespace, name, run_id in jobs:
            writer.create_run(RunRow(run_id, name, namespace, created_at=now, total_steps=100_000))
            writer.start_attempt(AttemptRow(run_id, 1, now, step_from=0))
        writer.close()
        runs = [run_id for _, _, run_id in jobs]
        self._thread = threading.Thread(target=self._train, args=(runs,), daemon=True)
        self._thread.start()

    def go(self) -> None:
        """From now on steps are finished."""
        self._going.set()

    def pause(self) -> None:
        """From now on none is."""
        self._going.clear()

    def close(self) -> None:
        """End everything."""
        self._stopped.set()
        self._going.set()
        if self._thread is not None:
            self._thread.join()
        self._server.close()

    def _train(self, runs: Sequence[str]) -> None:
        writer = open_writer(self.url)
        due = time.monotonic()
        for number, run_id in enumerate(cycle(runs)):
            self._going.wait()
            due = max(due + self._step_seconds / len(runs), time.monotonic() - 1.0)
            if self._stopped.wait(max(0.0, due - time.monotonic())):
                break
            step, now = number // len(runs) + 1, time.time()
            writer.write(run_id, WriteBatch([Point.of(metric, step, 1, now, 0.5) for metric in METRICS]))
            self.steps += 1
        writer.close()
