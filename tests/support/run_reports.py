"""What a trainer tells the metadata store of its steps."""

import time

from dapo_core.db import MetadataWriter, Point, WriteBatch
from dapo_core.run import metrics


def report(writer: MetadataWriter, run: str, step: int, entropy: float = 0.5) -> None:
    """One step."""
    values = {
        metrics.ENTROPY: entropy,
        metrics.REWARD_GENERATED: 0.25,
        metrics.LENGTH_MEAN: 812.0,
        metrics.STEP_SECONDS: 30.0,
    }
    now = time.time()
    writer.write(run, WriteBatch(points=[Point.of(name, step, 1, now, value) for name, value in values.items()]))
