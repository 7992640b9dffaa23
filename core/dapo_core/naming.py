"""Names of runs, pods, labels and object keys, in one place so that all packages agree. Pure."""

import hashlib
import re
import secrets
from datetime import UTC, datetime
from typing import Final, Literal, get_args

GROUP: Final = "dapo.io"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"
KIND: Final = "DAPOJob"
PLURAL: Final = "dapojobs"
SINGULAR: Final = "dapojob"
SHORT_NAME: Final = "dj"

LABEL_JOB: Final = f"{GROUP}/job"
LABEL_ROLE: Final = f"{GROUP}/role"
LABEL_ATTEMPT: Final = f"{GROUP}/attempt"
LABEL_INDEX: Final = f"{GROUP}/index"
LABEL_LIFE: Final = f"{GROUP}/life"
LABEL_RUN: Final = f"{GROUP}/run"

Role = Literal["head", "trainer", "rollout"]
ROLES: Final[tuple[Role, ...]] = get_args(Role)

# A pod's name is also its host name and the name of a Service: an RFC 1035 label of up to 63 characters.
MAX_LABEL: Final = 63
MAX_ATTEMPT: Final = 9999
MAX_INDEX: Final = 9999
# Pod names and the run ID, which is a label value, must fit.
MAX_JOB_NAME: Final = MAX_LABEL - max(len("-rollout-9999-9999"), len("-20261121-0412-x7k2"))
NAME_PATTERN: Final = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"

MANIFEST: Final = "manifest.json"
# As `new_run_id` makes them.
RUN_ID: Final = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?-\d{8}-\d{4}-[a-z0-9]{4,}")
_STEP_FOLDER = re.compile(r"^step-(\d{6,})$")
_CHECKPOINT_FOLDER = re.compile(r"^step-(\d{6,})(?:-attempt-(\d+))?$")
# Of a checkpoint whose keys do not contain the attempt, as earlier versions wrote them.
NO_ATTEMPT: Final = 0
_SUFFIX_ALPHABET: Final = "23456789abcdefghjkmnpqrstuvwxyz"


def child_name(job: str, role: Role, attempt: int, index: int, life: int = 1) -> str:
    """The name of one pod: `{job}-{role}-{attempt}-{index}`, and `-{life}` for those after the first of a rollout."""
    first = f"{job}-{role}-{attempt}-{index}"
    return first if life == 1 else f"{first}-{life}"


def host_name(job: str, role: Role, attempt: int, index: int, life: int = 1) -> str:
    """The host name of one pod: its name, or that of its first life where the name of a later one is too long."""
    name = child_name(job, role, attempt, index, life)
    return name if len(name) <= MAX_LABEL else child_name(job, role, attempt, index)


def child_labels(job: str, run_id: str, role: Role, attempt: int, index: int, life: int = 1) -> dict[str, str]:
    """The labels of one pod, by which a job's pods are selected. Only rollouts have lives."""
    return {
        "app.kubernetes.io/name": "dapo",
        "app.kubernetes.io/managed-by": "dapo-operator",
        LABEL_JOB: job,
        LABEL_RUN: run_id,
        LABEL_ROLE: role,
        LABEL_ATTEMPT: str(attempt),
        LABEL_INDEX: str(index),
        **({LABEL_LIFE: str(life)} if role == "rollout" else {}),
    }


def new_run_id(job: str, now: datetime | None = None) -> str:
    """A readable, unique run ID: `{job}-{UTC date}-{UTC time}-{four random characters}`, at most 63 characters."""
    moment = (now or datetime.now(UTC)).astimezone(UTC)
    tail = "".join(secrets.choice(_SUFFIX_ALPHABET) for _ in range(4))
    return f"{job}-{moment:%Y%m%d-%H%M}-{tail}"


def run_id_of(job: str, created: datetime, uid: str) -> str:
    """The run ID of a DAPOJob, always the same, at most 63 characters; a long name is cut.

    All teams share these IDs: 12 characters from the UID, which only the job's own namespace can read, are too many for
    others to guess.
    """
    digest = hashlib.sha256(uid.encode()).digest()[:12]
    tail = "".join(_SUFFIX_ALPHABET[byte % len(_SUFFIX_ALPHABET)] for byte in digest)
    stamp = f"-{created.astimezone(UTC):%Y%m%d-%H%M}-{tail}"
    return job[: MAX_LABEL - len(stamp)].rstrip("-") + stamp


def step_folder(step: int) -> str:
    """`step-000123`: six digits, so that names sort in step order up to 999,999."""
    return f"step-{step:06d}"


def parse_step_folder(name: str) -> int | None:
    """The step of a `step-000123` folder name, or None for any other name."""
    match = _STEP_FOLDER.match(name)
    return int(match.group(1)) if match else None


def checkpoints_prefix(run_id: str) -> str:
    """The key prefix of a run's checkpoints, with the trailing slash."""
    return f"{run_id}/checkpoints/"


def checkpoint_folder(step: int, attempt: int) -> str:
    """`step-000123-attempt-2`; `step-000123` for `NO_ATTEMPT`. Only that attempt writes to it."""
    return f"{step_folder(step)}-attempt-{attempt}" if attempt else step_folder(step)


def parse_checkpoint_folder(name: str) -> tuple[int, int] | None:
    """Step and attempt of a `checkpoint_folder`, or None for any other name."""
    match = _CHECKPOINT_FOLDER.match(name)
    return (int(match.group(1)), int(match.group(2) or NO_ATTEMPT)) if match else None


def checkpoint_prefix(run_id: str, step: int, attempt: int) -> str:
    """The key prefix of the checkpoint that one attempt wrote at one step, with the trailing slash."""
    return f"{checkpoints_prefix(run_id)}{checkpoint_folder(step, attempt)}/"


def manifest_key(run_id: str, step: int, attempt: int) -> str:
    """The key of the object whose existence commits a checkpoint."""
    return checkpoint_prefix(run_id, step, attempt) + MANIFEST


def corrupt_key(run_id: str, step: int, attempt: int) -> str:
    """The key of the manifest of a committed checkpoint that turned out to be corrupt."""
    return f"{manifest_key(run_id, step, attempt)}.damaged"


def pins_prefix(run_id: str) -> str:
    """The key prefix of the objects that keep checkpoints of a run from retention, with the trailing slash."""
    return f"{checkpoints_prefix(run_id)}pins/"


def pin_key(run_id: str, step: int) -> str:
    """The key of the object that keeps one checkpoint from retention."""
    return pins_prefix(run_id) + step_folder(step)


def shared_prefix(run_id: str) -> str:
    """The key prefix of files that several checkpoints of a run share, with the trailing slash."""
    return f"{checkpoints_prefix(run_id)}shared/"


def shared_key(run_id: str, sha256: str) -> str:
    """The key of a file that several checkpoints share, by its content."""
    return shared_prefix(run_id) + sha256


def samples_prefix(run_id: str) -> str:
    """The key prefix of a run's logged samples, with the trailing slash."""
    return f"{run_id}/samples/"


def samples_key(run_id: str, step: int, attempt: int) -> str:
    """The key of the Parquet object with the logged samples of one step."""
    return f"{samples_prefix(run_id)}{step_folder(step)}-attempt-{attempt}.parquet"


def groups_key(run_id: str, step: int, attempt: int) -> str:
    """The key of the Parquet object with the groups of one step (`dapo_core.run.recording.RecordedGroup`)."""
    return f"{samples_prefix(run_id)}{step_folder(step)}-attempt-{attempt}-groups.parquet"


def tokens_key(run_id: str, step: int, attempt: int) -> str:
    """The key of the Parquet object with the responses of one step that are recorded token by token
    (`dapo_core.run.recording.RecordedResponse`)."""
    return f"{samples_prefix(run_id)}{step_folder(step)}-attempt-{attempt}-tokens.parquet"


def spool_prefix(run_id: str) -> str:
    """The key prefix of records that the metadata store has not confirmed, with the trailing slash."""
    return f"{run_id}/spool/"
