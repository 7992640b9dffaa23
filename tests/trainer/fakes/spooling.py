"""A trainer that does nothing but report: argv is spool folder, database URL, run id, attempt and first step.

Each step it prints on stdout was on the spool's disk, so its points may never be lost. It goes on until it is killed.
"""

import os
import random
import sys
from pathlib import Path

from dapo_core.backoff import Backoff
from dapo_core.db import open_writer
from dapo_trainer.spool import Sender, Spool

folder, url, run_id, attempt, first = sys.argv[1:]
chance = random.Random(int(attempt))
spool = Spool(Path(folder), int(attempt), segment_bytes=4000)
sender = Sender(Path(folder), open_writer(url), run_id, poll_seconds=0.001, backoff=Backoff(0.01, 0.1))
for step in range(int(first), 1_000_000):
    spool.step(step, {f"m/{number}": step + number / 10 for number in range(5)})
    spool.event("Step", f"step {step}", step=step, dedup_key=f"step-{step}-{attempt}")
    if chance.random() < 0.3:
        spool.sync(10)
        os.write(1, b"%d\n" % step)
