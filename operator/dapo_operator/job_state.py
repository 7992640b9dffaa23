"""What the operator keeps of one DAPOJob between two reconciliations, and when a changed status is written."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from dapo_core.run.reasons import Reason
from dapo_core.run.status import Condition, DAPOJobStatus, Progress
from dapo_operator.jobs.dapojob import FINALIZER, Job, job_of, queue_label, status_body, status_of
from dapo_operator.jobs.gangs.kueue import QUEUE_LABEL
from dapo_operator.jobs.job_objects import Site
from dapo_operator.kube.objects import Object, age, version_of

# How long a job may wait for its pods, and for how long its failure is new.
ATTENTION_SECONDS: Final = 3600.0
# What the metrics count beside the conditions of the API: jobs that need somebody's attention.
WAITING: Final = "Waiting"
FAILED_RECENTLY: Final = "FailedRecently"
_STARTS_TO_WAIT: Final = ("Training", "Suspended", "Failed", "QuotaReserved")
# How long a change of nothing but the number of rollout pods waits for others.
COUNT_SECONDS: Final = 300.0
# The progress of many runs is written less often: a status for each of them in turn, so many seconds apart, up to this.
WRITE_SECONDS: Final = 0.3
PROGRESS_MAX_SECONDS: Final = 300.0

_KEPT: Final = (
    "name",
    "namespace",
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "finalizers",
)
# Fields that change by themselves, beside what the job does.
_NUMBERS: Final = ("rollout_replicas", "pods", "progress", "checkpoint", "time")


class JobState:
    """The newest known state of a DAPOJob. Its spec is parsed once per generation, its status once per version; what
    was parsed is not kept as JSON, too."""

    def __init__(self, raw: Object, site: Site) -> None:
        self.raw, self._site = raw, site
        self._job: Job | None = None
        self._status: tuple[str, DAPOJobStatus] | None = None

    @property
    def uid(self) -> str:
        """The DAPOJob's UID."""
        uid: str = self.raw["metadata"]["uid"]
        return uid

    @property
    def version(self) -> int:
        """Its resource version."""
        return version_of(self.raw)

    def is_older_than(self, raw: Object) -> bool:
        """Whether `raw` is a newer state, or another DAPOJob of the same name."""
        return version_of(raw) > self.version or raw["metadata"]["uid"] != self.uid

    def load(self) -> tuple[Job, DAPOJobStatus]:
        """The job, and its status as it was written last. Raises UnreadableStatusError; `last_job` is the job then."""
        loaded = self._parsed(), self.written()
        self.raw = _slim(self.raw)
        return loaded

    def written(self) -> DAPOJobStatus:
        """The status as it was written last. Raises UnreadableStatusError."""
        version = self.raw["metadata"]["resourceVersion"]
        if self._status is None or self._status[0] != version:
            self._status = (version, status_of(self.raw))
        return self._status[1]

    def accept(self, raw: Object, status: DAPOJobStatus) -> None:
        """The API server's response to a write of this status."""
        self.raw = _slim(raw) if self._job is not None and _is_parsed_from(self._job, raw) else raw
        self._status = (raw["metadata"]["resourceVersion"], status)

    def replace_job(self, job: Job) -> Job:
        """Keep `job`, made from the one of the last `load`, until the spec changes; returns it."""
        self._job = job
        return job

    @property
    def last_job(self) -> Job | None:
        """The job as of the last `load`; None before the first."""
        return self._job

    @property
    def last_status(self) -> DAPOJobStatus:
        """The status as it was read or written last, without parsing a newer state; empty before the first `load`."""
        return self._status[1] if self._status is not None else DAPOJobStatus()

    def _parsed(self) -> Job:
        job = self._job
        if job is None or not _is_parsed_from(job, self.raw):
            job = job_of(self.raw, self._site)
        elif job.held != (FINALIZER in self.raw["metadata"].get("finalizers", ())):
            job = replace(job, held=not job.held)
        self._job = job
        return job


def counted_conditions(status: DAPOJobStatus, now: float) -> list[str]:
    """What the metrics count of a job: its conditions that are True; WAITING when it could train and has not for an
    hour, unless it waits in a queue for its quota; FAILED_RECENTLY in the first hour after it failed."""
    held: list[str] = [each.type for each in status.conditions if each.status == "True"]
    since = {each.type: age(each.last_transition_time, now) for each in status.conditions}
    if "Failed" in held:
        return [*held, FAILED_RECENTLY] if since["Failed"] <= ATTENTION_SECONDS else held
    queued = any(each.reason == Reason.WAITING_FOR_QUOTA for each in status.conditions)
    if queued or "Training" not in since or {"Training", "Succeeded", "Suspended"}.intersection(held):
        return held
    # A job that was resumed or admitted a moment ago has only begun to wait.
    waited = min(since[kind] for kind in _STARTS_TO_WAIT if kind in since)
    return [*held, WAITING] if waited > ATTENTION_SECONDS else held


def _is_parsed_from(job: Job, raw: Object) -> bool:
    """Whether parsing this state would give the same job, apart from the finalizer."""
    meta = raw["metadata"]
    deleted = "deletionTimestamp" in meta
    return (job.uid, job.generation, job.deleting_since is not None, job.queue_label) == (
        meta["uid"],
        meta.get("generation", 1),
        deleted,
        queue_label(meta),
    )


def _slim(raw: Object) -> Object:
    """The object without spec and status, which were parsed, and without what nobody reads of its metadata: kubectl
    repeats the whole object in an annotation."""
    meta = raw["metadata"]
    kept = {key: meta[key] for key in _KEPT if key in meta}
    if (queue := queue_label(meta)) is not None:
        kept["labels"] = {QUEUE_LABEL: queue}
    return {"apiVersion": raw["apiVersion"], "kind": raw["kind"], "metadata": kept}


@dataclass
class StatusWrites:
    """When a changed status is written: immediately, unless only progress or a count has changed; those wait, so that
    a run costs two writes every `delay_seconds`, not one each step. A change of a condition's message alone waits for
    all of them: a scheduler counts the nodes again every few seconds. `due_at` (Unix seconds) is when a status that was
    held back is written; None when none is. `runs`: how many report progress."""

    delay_seconds: float
    due_at: float | None = None
    runs: int = 1
    _progress: Progress | None = None
    _written_at: float = 0.0

    def with_unwritten(self, status: DAPOJobStatus) -> DAPOJobStatus:
        """The status with the progress that is not written yet."""
        return status.model_copy(update={"progress": self._progress}) if self._progress else status

    def due(self, old: DAPOJobStatus, new: DAPOJobStatus, now: float) -> bool:
        """Whether to write `new` over `old` now."""
        self._progress, self.due_at = new.progress, None
        if status_body(old) == status_body(new):
            return False
        wait = self._wait_seconds(old, new)
        # A last write in the future was dated by a clock that has been set back; nothing waits for it.
        if 0.0 <= now - self._written_at < wait:
            self.due_at = self._written_at + wait
            return False
        return True

    @property
    def progress_seconds(self) -> float:
        """How long a change of nothing but numbers waits, counted from the last write."""
        return max(self.delay_seconds / 2, min(WRITE_SECONDS * self.runs, PROGRESS_MAX_SECONDS))

    def progress_in(self, now: float) -> float:
        """Seconds until progress may be written."""
        return max(0.0, self.progress_seconds - max(0.0, now - self._written_at))

    def wrote(self, now: float) -> None:
        """The status was written at `now`."""
        self._written_at = now

    def _wait_seconds(self, old: DAPOJobStatus, new: DAPOJobStatus) -> float:
        """Seconds that this change may wait for others, counted from the last write."""
        # The first step is shown immediately; those after it are in the metadata store for whoever cannot wait.
        if _step(old) is None and _step(new) is not None:
            return 0.0
        if _same(old, new, "rollout_replicas"):
            return COUNT_SECONDS
        if _same(old, new, *_NUMBERS):
            return self.progress_seconds
        worded = new.model_copy(update={"conditions": _with_words_of(old.conditions, new.conditions)})
        return self.delay_seconds if _same(old, worded, *_NUMBERS, "reason") else 0.0


def _with_words_of(old: Sequence[Condition], new: Sequence[Condition]) -> list[Condition]:
    """The new conditions with the old messages of those that say the same."""
    words = {(known.type, known.status, known.reason): known.message for known in old}
    said = ((condition, words.get((condition.type, condition.status, condition.reason))) for condition in new)
    return [condition if word is None else condition.model_copy(update={"message": word}) for condition, word in said]


def _same(old: DAPOJobStatus, new: DAPOJobStatus, *but: str) -> bool:
    """Whether two statuses are equal except in these fields."""
    return status_body(old.model_copy(update={field: getattr(new, field) for field in but})) == status_body(new)


def _step(status: DAPOJobStatus) -> int | None:
    return status.progress.step if status.progress is not None else None
