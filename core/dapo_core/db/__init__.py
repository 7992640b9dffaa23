"""The metadata store: runs, attempts, curves, events, checkpoints and samples in one SQL database.

`upgrade(url)` creates or migrates the tables; `open_writer(url)` and `open_reader(url)` use them. Every write is
idempotent: a sender that does not know whether its last batch arrived sends it again.
"""

from dapo_core.db.dialects import AmbiguousRunError, ForeignRunError, RejectedError, StoreBehindError, shown_url
from dapo_core.db.migrations import check, upgrade
from dapo_core.db.overwritten import repeated_steps
from dapo_core.db.reader import MetadataReader, open_reader
from dapo_core.db.writer import MetadataWriter, open_writer
from dapo_core.run.entries import ENDED_STATES, EventType, RunState
from dapo_core.run.store_rows import (
    AlertRow,
    AttemptRow,
    Bucket,
    CheckpointRow,
    CheckpointState,
    CurvePart,
    CurvePoint,
    EvaluationRow,
    EventRow,
    Flag,
    Point,
    Receipt,
    RunMark,
    RunProgress,
    RunRow,
    RunSummary,
    RunTableRow,
    SamplesRow,
    WriteBatch,
    join_value,
    split_value,
)

__all__ = [
    "ENDED_STATES",
    "AlertRow",
    "AmbiguousRunError",
    "AttemptRow",
    "Bucket",
    "CheckpointRow",
    "CheckpointState",
    "CurvePart",
    "CurvePoint",
    "EvaluationRow",
    "EventRow",
    "EventType",
    "Flag",
    "ForeignRunError",
    "MetadataReader",
    "MetadataWriter",
    "Point",
    "Receipt",
    "RejectedError",
    "RunMark",
    "RunProgress",
    "RunRow",
    "RunState",
    "RunSummary",
    "RunTableRow",
    "SamplesRow",
    "StoreBehindError",
    "WriteBatch",
    "check",
    "join_value",
    "open_reader",
    "open_writer",
    "repeated_steps",
    "shown_url",
    "split_value",
    "upgrade",
]
