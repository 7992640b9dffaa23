"""The object whose existence commits a checkpoint: what belongs to it and how each file is known to be whole."""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import PurePosixPath
from typing import Any, Final

from dapo_core.db.rows import CheckpointRow, CheckpointState
from dapo_core.errors import CheckpointError
from dapo_core.naming import checkpoint_prefix, shared_key

VERSION: Final = 3
READABLE: Final = (1, 2, 3)  # the first knew no shared files, the second no sums of parts
_SHA256 = re.compile(r"[0-9a-f]{64}")
_RANK = re.compile(r"_rank_(\d+)\.pt$")
_MODEL = re.compile(r"(?:^|/)model_world_size_(\d+)_rank_\d+\.pt$")


@dataclass(frozen=True)
class FileEntry:
    """One file: its path within the checkpoint, its size in bytes and the SHA-256 of its content, or with `part_bytes`
    that of its parts' sums (`dapo_core.objectstore.Content`).

    `shared`: it lies under its content, once for all checkpoints of the run that have it.
    """

    path: str
    size: int
    sha256: str
    shared: bool = False
    part_bytes: int | None = None

    @property
    def rank(self) -> int | None:
        """The FSDP rank that wrote and reads the file; None for a file of all."""
        found = _RANK.search(self.path)
        return int(found.group(1)) if found else None


@dataclass(frozen=True)
class Manifest:
    """A committed checkpoint. `created_at` is in Unix seconds; `metrics` are those of its step."""

    run_id: str
    step: int
    attempt: int
    spec_digest: str
    created_at: float
    files: tuple[FileEntry, ...]
    metrics: Mapping[str, float] = field(default_factory=dict)
    # What `resume.pick` asks for: a manifest that exists is of a committed checkpoint.
    state: CheckpointState = "committed"

    @property
    def size_bytes(self) -> int:
        return sum(entry.size for entry in self.files)

    @property
    def ranks(self) -> int | None:
        """How many FSDP ranks wrote the model; None when it is not of that kind."""
        found = (_MODEL.search(entry.path) for entry in self.files)
        return next((int(match.group(1)) for match in found if match), None)

    def key(self, entry: FileEntry) -> str:
        """Where one of its files lies."""
        if entry.shared:
            return shared_key(self.run_id, entry.sha256)
        return checkpoint_prefix(self.run_id, self.step) + entry.path

    def to_bytes(self) -> bytes:
        """JSON for people and programs; metrics that are not finite are left out."""
        body = asdict(self) | {"version": VERSION}
        del body["state"]
        body["metrics"] = {name: value for name, value in self.metrics.items() if math.isfinite(value)}
        return json.dumps(body, indent=1).encode()

    def row(self, uri: str, decision: str | None = None) -> CheckpointRow:
        """What the metadata store keeps of it."""
        return CheckpointRow(
            run_id=self.run_id,
            step=self.step,
            attempt=self.attempt,
            state=self.state,
            uri=uri,
            updated_at=self.created_at,
            size_bytes=self.size_bytes,
            files=len(self.files),
            spec_digest=self.spec_digest,
            metrics={name: value for name, value in self.metrics.items() if math.isfinite(value)},
            decision=decision,
        )


def parse(data: bytes, key: str) -> Manifest:
    """The manifest in `data`. Raises CheckpointError, naming `key`, for one that is damaged or of a newer program."""
    try:
        body: dict[str, Any] = json.loads(data)
        version = body.pop("version")
        if version not in READABLE:
            raise CheckpointError(f"{key} is of version {version}, which this program does not know: use a newer one.")
        files = tuple(_entry(listed) for listed in body.pop("files"))
        manifest = Manifest(**body, files=files)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{key} is damaged ({error}).") from error
    if outside := next((entry.path for entry in files if not _inside(entry.path)), None):
        raise CheckpointError(f"{key} names {outside!r}, which is outside of the checkpoint.")
    return manifest


def _entry(listed: Mapping[str, Any]) -> FileEntry:
    part_bytes = listed.get("part_bytes")
    entry = FileEntry(
        str(listed["path"]),
        int(listed["size"]),
        str(listed["sha256"]),
        bool(listed.get("shared")),
        None if part_bytes is None else max(1, int(part_bytes)),
    )
    if not _SHA256.fullmatch(entry.sha256):
        raise ValueError(f"{entry.sha256!r} is no SHA-256")
    return entry


def _inside(path: str) -> bool:
    parts = PurePosixPath(path)
    return bool(path) and not parts.is_absolute() and ".." not in parts.parts
