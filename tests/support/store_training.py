"""Training beside a Postgres that has bad days, and whether all it told is there afterwards."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import psycopg
from patience import patient
from servers.postgres import plain

from dapo_core.backoff import Backoff
from dapo_core.db import MetadataWriter, open_reader, open_writer
from dapo_trainer.spool import Sender, Spool, read_records

QUICK = Backoff(0.02, 0.2)  # minutes become seconds
PATIENCE: Final = patient(60.0)
RUN: Final = "r"


class Training:
    """Reports a step each few milliseconds until it is ended, as a trainer does, beside a sender."""

    def __init__(self, folder: Path, url: str, attempt: int = 1, first: int = 1) -> None:
        self.folder, self.url, self.attempt = folder, url, attempt
        self.spool = Spool(folder, attempt, segment_bytes=20_000)
        self.told: list[str] = []
        self.writer: MetadataWriter = open_writer(url)
        self.sender = Sender(
            folder, self.writer, RUN, poll_seconds=0.01, verify_seconds=0.5, backoff=QUICK, notify=self._tell
        )
        self.step = first
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._train)
        self._thread.start()

    def _tell(self, reason: str, message: str) -> None:
        self.told.append(reason)
        self.spool.event(reason, message)

    def _train(self) -> None:
        while not self._ended.wait(0.002):
            self.spool.step(self.step, {f"m/{number}": self.step + number / 8 for number in range(10)})
            self.step += 1

    def until_delivered(self, more: int) -> None:
        """Go on until so many more steps have arrived."""
        then = self.delivered()
        wait_until(lambda: self.delivered() >= then + more, f"{more} more steps than {then} arrive")

    def delivered(self) -> int:
        points = open_reader(self.url).latest(RUN)
        return max((point.step for point in points.values()), default=0)

    def close(self, seconds: float = PATIENCE) -> bool:
        self._ended.set()
        self._thread.join()
        written = self.spool.close()
        return self.sender.close(seconds) and written


def wait_until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline, f"not within {PATIENCE:g} s: {what}"
        time.sleep(0.02)


def assert_each_point_once(url: str, *folders: Path) -> None:
    """The rows of the database against the records of the spools."""
    points, events = [], set()
    for folder in folders:
        for record in read_records(folder):
            if record.kind == "step":
                points += [(name, record.step, record.attempt, value) for name, value in record.numbers.items()]
            else:
                events.add(record.body["dedup_key"])
    query = "SELECT name, step, attempt, value FROM curve_points JOIN metric_names USING (metric_id)"
    with psycopg.connect(plain(url)) as connection:
        stored = connection.execute(query).fetchall()
        counted = connection.execute("SELECT sum(count) FROM rollups WHERE width = 16").fetchone()
        told = {key for (key,) in connection.execute("SELECT dedup_key FROM events").fetchall()}
        rolled = connection.execute(
            "SELECT count(DISTINCT (metric_id, points.step)) FROM curve_points points JOIN run_keys USING (run_key) "
            "JOIN latest USING (run_id, metric_id) WHERE points.step < rolled_to"
        ).fetchone()
    assert sorted(stored) == sorted(points) and told == events
    assert counted == rolled and rolled is not None and rolled[0] > 0
