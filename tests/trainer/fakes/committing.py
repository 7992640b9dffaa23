"""Commits one checkpoint after another until it is killed: argv is store URL, scratch folder and first step.

It says "begin" once and then each step whose checkpoint is committed.
"""

import os
import sys
from pathlib import Path

from dapo_core.objectstore import open_store
from dapo_core.run.checkpoint import Retention
from dapo_trainer.checkpoints.checkpoint_store import CheckpointStore, LocalCheckpoint

url, scratch, first = sys.argv[1:]
checkpoints = CheckpointStore(open_store(url), "r")
os.write(1, b"begin\n")
for step in range(int(first), int(first) + 1000):
    folder = Path(scratch) / str(step)
    folder.mkdir(parents=True)
    for name in ("a", "b", "c"):
        (folder / name).write_bytes(os.urandom(100_000))
    (folder / "tokenizer.json").write_bytes(b"{}")
    checkpoints.commit(LocalCheckpoint(step, folder, 1, "d"), give=step % 2 == 0)
    os.write(1, b"%d\n" % step)
    checkpoints.retain(Retention(keep_last=3))
