"""A trainer in a pod: it reports steps, commits each fifth, and goes on until it is killed.

argv is the pod's disk, the store's URL, the database's URL and the attempt. It prints each step that it has committed.
"""

import os
import sys
from pathlib import Path

from dapo_core.backoff import Backoff
from dapo_core.db import open_writer
from dapo_core.objectstore import open_store
from dapo_trainer.checkpoints.checkpoint_store import CheckpointStore, LocalCheckpoint
from dapo_trainer.spool import Sender, Spool, StoredTail

disk, store_url, database, attempt = Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])
store = open_store(store_url)
spool = Spool(disk / "spool", attempt, segment_bytes=4000)
sender = Sender(disk / "spool", open_writer(database), "r", poll_seconds=0.01, backoff=Backoff(0.05, 0.2))
tail = StoredTail(store, "r")
checkpoints = CheckpointStore(store, "r", spool, secure_metrics=lambda: tail.save(spool.folder, attempt))
for step in range(1, 1_000_000):
    spool.step(step, {f"m/{number}": step + number / 10 for number in range(5)})
    if step % 5 == 0:
        folder = disk / f"global_step_{step}"
        folder.mkdir()
        (folder / "model.pt").write_bytes(b"x")
        checkpoints.commit(LocalCheckpoint(step, folder, attempt, "d"))
        os.write(1, b"%d\n" % step)
