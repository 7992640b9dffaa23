"""One line of the spool: a record with its number and a checksum, and its rows for the metadata store. Pure."""

import json
import sys
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from dapo_core.db import CheckpointRow, EventRow, Point, SamplesRow, WriteBatch, join_value, split_value

Kind = Literal["step", "event", "checkpoint", "samples"]
_CHECKSUM: Final = 8  # hexadecimal digits of a CRC-32


@dataclass(frozen=True)
class Record:
    """What happened at `ts` (Unix seconds). `seq` numbers the records of a spool folder from 1, over all attempts.

    | kind | body |
    |---|---|
    | step | values: {metric: number or null}, flags: {metric: "nan" / "inf" / "-inf"} of those that are null |
    | event | type, reason, message, dedup_key |
    | checkpoint | state, uri and the other fields of `CheckpointRow`; made_by: the attempt that wrote the checkpoint |
    | samples | key, rows, size_bytes |
    """

    seq: int
    kind: Kind
    ts: float
    attempt: int
    step: int | None
    body: Mapping[str, Any] = field(default_factory=dict)

    def encode(self) -> bytes:
        """The line with its line end: checksum, space, JSON. Raises ValueError or TypeError for what is not JSON."""
        head = {"seq": self.seq, "kind": self.kind, "ts": self.ts, "attempt": self.attempt, "step": self.step}
        text = json.dumps(head | dict(self.body), allow_nan=False, separators=(",", ":")).encode()
        return b"%08x %s\n" % (zlib.crc32(text), text)

    @property
    def numbers(self) -> dict[str, float]:
        """The values of a step, including NaN and infinities."""
        flags = self.body.get("flags", {})
        return {name: join_value(value, flags.get(name)) for name, value in self.body["values"].items()}


def decode(line: bytes) -> Record | None:
    """The record of a line, or None for one that is incomplete or corrupt."""
    try:
        checksum, text = int(line[:_CHECKSUM], 16), line[_CHECKSUM + 1 :].rstrip(b"\n")
        if zlib.crc32(text) != checksum:
            return None
        body = json.loads(text)
        head = {name: body.pop(name) for name in ("seq", "kind", "ts", "attempt", "step")}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return Record(**head, body=body) if _is_head(head) else None


def _is_head(head: Mapping[str, Any]) -> bool:
    whole = [head["seq"], head["attempt"], *([] if head["step"] is None else [head["step"]])]
    return (
        isinstance(head["kind"], str)
        and all(type(number) is int for number in whole)
        and type(head["ts"]) in (int, float)
        # Not math.isfinite, which raises OverflowError for a whole number that no float holds.
        and abs(head["ts"]) <= sys.float_info.max
    )


def step_body(values: Mapping[str, Any]) -> dict[str, Any]:
    """The body of a step, without the values that are not numbers."""
    kept: dict[str, float | None] = {}
    flags: dict[str, str] = {}
    for name, value in values.items():
        try:
            kept[name], flag = split_value(float(value))
        except (TypeError, ValueError, OverflowError):
            continue
        if flag:
            flags[name] = flag
    return {"values": kept, "flags": flags} if flags else {"values": kept}


def batch_of(run_id: str, records: list[Record]) -> WriteBatch:
    """Records as rows for the metadata store, without those of a kind that is unknown here."""
    rows: dict[str, list[Any]] = {"step": [], "event": [], "checkpoint": [], "samples": []}
    for record in records:
        if record.kind in rows:
            rows[record.kind].extend(_ROWS[record.kind](run_id, record))
    return WriteBatch(
        points=rows["step"], events=rows["event"], checkpoints=rows["checkpoint"], samples=rows["samples"]
    )


def _points(_run_id: str, record: Record) -> list[Point]:
    flags = record.body.get("flags", {})
    step = record.step or 0
    return [
        Point(name, step, record.attempt, record.ts, value, flags.get(name))
        for name, value in record.body["values"].items()
    ]


def _events(run_id: str, record: Record) -> list[EventRow]:
    return [EventRow(run_id, ts=record.ts, attempt=record.attempt, step=record.step, **record.body)]


def _checkpoints(run_id: str, record: Record) -> list[CheckpointRow]:
    fields = dict(record.body)
    return [CheckpointRow(run_id, record.step or 0, fields.pop("made_by"), **fields)]


def _samples(run_id: str, record: Record) -> list[SamplesRow]:
    return [SamplesRow(run_id, step=record.step or 0, attempt=record.attempt, ts=record.ts, **record.body)]


_ROWS: Final[Mapping[str, Callable[[str, Record], Sequence[Any]]]] = {
    "step": _points,
    "event": _events,
    "checkpoint": _checkpoints,
    "samples": _samples,
}
