"""A run's checkpoints: the manifest that commits one, which ones are kept, and which one a run resumes from. Pure."""

import json
import math
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import PurePosixPath
from typing import Any, Final, Protocol, TypeVar

from dapo_core.errors import CheckpointError
from dapo_core.naming import NO_ATTEMPT, checkpoint_prefix, shared_key
from dapo_core.run.formatting import printable
from dapo_core.run.store_rows import CheckpointRow, CheckpointState

VERSION: Final = 4
READABLE: Final = (1, 2, 3, 4)  # 1 has no shared files, 2 no checksums of parts, 3 no attempt in its keys
_MAX_WHOLE = 2**53  # beyond it JSON numbers are not exact
_SHA256 = re.compile(r"[0-9a-f]{64}")
_RANK = re.compile(r"_rank_(\d+)\.pt$")
_MODEL = re.compile(r"(?:^|/)model_world_size_(\d+)_rank_\d+\.pt$")


def is_model_shard(path: str) -> bool:
    """Whether a file has the weights of one FSDP rank."""
    return _MODEL.search(path) is not None


@dataclass(frozen=True)
class FileEntry:
    """One file: its path within the checkpoint, its size in bytes and the SHA-256 of its content, or with `part_bytes`
    that of its parts' checksums (`dapo_core.objectstore.Content`).

    `shared`: it is stored by its content, once for all checkpoints of the run that contain it.
    """

    path: str
    size: int
    sha256: str
    shared: bool = False
    part_bytes: int | None = None

    @property
    def rank(self) -> int | None:
        """The FSDP rank that wrote and reads the file; None for a file that all ranks share."""
        match = _RANK.search(self.path)
        return int(match.group(1)) if match else None

    def key(self, run_id: str, step: int, attempt: int) -> str:
        """Its object key in the checkpoint that the attempt wrote at `step`."""
        return shared_key(run_id, self.sha256) if self.shared else checkpoint_prefix(run_id, step, attempt) + self.path


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
    # As `Candidate` has it: a manifest that exists belongs to a committed checkpoint.
    state: CheckpointState = "committed"
    # Whether the keys of its files contain the attempt; those of earlier versions do not.
    is_keyed: bool = True

    @property
    def size_bytes(self) -> int:
        return sum(entry.size for entry in self.files)

    @property
    def ranks(self) -> int | None:
        """How many FSDP ranks wrote the model; None when it is not sharded by FSDP."""
        matches = (_MODEL.search(entry.path) for entry in self.files)
        return next((int(match.group(1)) for match in matches if match), None)

    @property
    def keyed_attempt(self) -> int:
        """The attempt in its keys."""
        return self.attempt if self.is_keyed else NO_ATTEMPT

    def key(self, entry: FileEntry) -> str:
        """The object key of one of its files."""
        return entry.key(self.run_id, self.step, self.keyed_attempt)

    def to_bytes(self) -> bytes:
        """The manifest as JSON, without metrics that are not finite."""
        body = asdict(self) | {"version": VERSION if self.is_keyed else 3}
        del body["state"], body["is_keyed"]
        body["metrics"] = {name: value for name, value in self.metrics.items() if math.isfinite(value)}
        return json.dumps(body, indent=1).encode()

    def row(self, uri: str, decision: str | None = None) -> CheckpointRow:
        """Its row in the metadata store."""
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


def parse_manifest(data: bytes, key: str) -> Manifest:
    """The manifest in `data`. Raises CheckpointError, naming `key`, for one that is corrupt or of a newer version."""
    try:
        body: dict[str, Any] = json.loads(data)
        version = body.pop("version")
        if version not in READABLE:
            raise CheckpointError(f"{key} has manifest version {version}: upgrade dapo to read it.")
        files = tuple(_entry(listed) for listed in body.pop("files"))
        manifest = Manifest(**body, files=files, is_keyed=version >= 4)
        _check_values(manifest)
    # Whoever can write to the store writes them: also 1e999 as a size, or a thousand brackets.
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise CheckpointError(f"{key} is corrupt ({error}).") from error
    if outside := next((entry.path for entry in files if not _inside(entry.path)), None):
        raise CheckpointError(f"{key} names {outside!r}, which is outside the checkpoint.")
    return manifest


def _check_values(manifest: Manifest) -> None:
    """Raises ValueError unless all values are what the fields say, and numbers that a database takes."""
    whole = [manifest.step, manifest.attempt, *(entry.size for entry in manifest.files)]
    if not all(type(number) is int and 0 <= number < _MAX_WHOLE for number in whole):
        raise ValueError("a step, an attempt or a size is not a whole number from 0 on")
    texts = [manifest.run_id, manifest.spec_digest, manifest.state, *(entry.path for entry in manifest.files)]
    if not all(isinstance(text, str) and text == printable(text) for text in texts):
        raise ValueError("a name is not text")
    if manifest.state != "committed" or not isinstance(manifest.metrics, Mapping):
        raise ValueError("its state or its metrics are invalid")
    numbers = [manifest.created_at, *manifest.metrics.values()]
    if not all(type(number) in (int, float) and math.isfinite(number) for number in numbers):
        raise ValueError("a time or a metric is not a finite number")


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
        raise ValueError(f"{entry.sha256!r} is not a SHA-256")
    return entry


def _inside(path: str) -> bool:
    parts = PurePosixPath(path)
    return bool(path) and not parts.is_absolute() and ".." not in parts.parts


class Candidate(Protocol):
    """What a database row and a manifest both say of a checkpoint."""

    @property
    def step(self) -> int: ...

    @property
    def attempt(self) -> int: ...

    @property
    def state(self) -> str: ...


C = TypeVar("C", bound=Candidate)


def committed(checkpoints: Iterable[C]) -> list[C]:
    """The checkpoints that a run may resume from, newest first: by step, then by attempt."""
    whole = [checkpoint for checkpoint in checkpoints if checkpoint.state == "committed"]
    return sorted(whole, key=lambda checkpoint: (checkpoint.step, checkpoint.attempt), reverse=True)


def newest_committed(checkpoints: Iterable[C]) -> C | None:
    """The checkpoint that a run resumes from; None to start from the model."""
    return next(iter(committed(checkpoints)), None)


@dataclass(frozen=True)
class Retention:
    """Keep the newest `keep_last` checkpoints and the best `keep_best` by `best_metric`, highest first."""

    keep_last: int = 2
    keep_best: int = 0
    best_metric: str | None = None


@dataclass(frozen=True)
class RetentionVerdict:
    """Whether the checkpoint of one step is kept, and a sentence that says why."""

    step: int
    keep: bool
    why: str


def judge(
    retention: Retention, checkpoints: Mapping[int, Mapping[str, float]], pinned: Collection[int] = ()
) -> list[RetentionVerdict]:
    """A verdict on each committed checkpoint, newest first. `checkpoints` are their metrics by step; steps in `pinned`
    are kept besides those that `retention` keeps.

    One without a finite `best_metric` (no validation at its step) is never among the best. The later of two equally
    good ones is better: it has trained for longer.
    """
    newest = sorted(checkpoints, reverse=True)
    last = newest[: max(1, retention.keep_last)]
    values = {step: value for step in newest if (value := _value(retention, checkpoints[step])) is not None}
    best = sorted(values, key=lambda step: (values[step], step), reverse=True)[: retention.keep_best]
    return [_verdict(retention, step, last, best, values, step in pinned) for step in newest]


def _value(retention: Retention, metrics: Mapping[str, float]) -> float | None:
    name = retention.best_metric or ""
    value = metrics.get(name, metrics.get(f"{name}/mean"))  # best@k and maj@k are recorded as best@k/mean, maj@k/mean
    return value if value is not None and math.isfinite(value) else None


def _verdict(
    retention: Retention, step: int, last: list[int], best: list[int], values: Mapping[int, float], is_pinned: bool
) -> RetentionVerdict:
    reasons = ["pinned by `dapo checkpoints keep`"] if is_pinned else []
    if step in last:
        reasons.append(f"number {last.index(step) + 1} of the newest {len(last)}")
    if step in best:
        place = best.index(step) + 1
        reasons.append(f"number {place} of the best {len(best)} by {retention.best_metric} ({values[step]:.4g})")
    if reasons:
        return RetentionVerdict(step, True, f"Kept as {' and '.join(reasons)}.")
    among = f"the newest {len(last)}"
    if retention.keep_best and retention.best_metric:
        value = f"{values[step]:.4g}" if step in values else "not measured"
        among += f" or best {retention.keep_best} by {retention.best_metric} ({value})"
    return RetentionVerdict(step, False, f"Removed: not among {among}.")
