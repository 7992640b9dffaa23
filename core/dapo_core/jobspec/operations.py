"""Keeping a run alive and its results: checkpoints, run policy and stores."""

from typing import Annotated, Literal

from pydantic import Field

from dapo_core.jobspec.base import Items, Seconds, SpecModel, WritableUri
from dapo_core.naming import Role

BEST_METRIC_PATTERN = r"^val-core/[A-Za-z0-9]([-_.A-Za-z0-9]*[A-Za-z0-9])?/[A-Za-z0-9_]+/(mean|best|maj)@[1-9][0-9]*$"
RESUME_PATTERN = r"^((s3://|pvc://)[^/\s]+.*|file:///.+|[a-z0-9]([-a-z0-9]*[a-z0-9])?(@[0-9]+)?)$"


class Checkpoints(SpecModel):
    """Where checkpoints go and which are kept."""

    uri: WritableUri | None = Field(
        default=None,
        description="Folder or bucket of the run's objects: s3://bucket/prefix, file:///folder or pvc://claim/folder. "
        "Left out, the bucket of the stores' Secret on Kubernetes and runs/store on one machine.",
    )
    keep_last: int = Field(
        default=2,
        ge=1,
        le=1000,
        description="Newest checkpoints kept. Two, so that a damaged newest one still leaves one to resume from.",
    )
    keep_best: int = Field(
        default=0, ge=0, le=1000, description="Best checkpoints kept besides, by `bestMetric`; 0 keeps none for that."
    )
    best_metric: str | None = Field(
        default=None,
        max_length=253,
        pattern=BEST_METRIC_PATTERN,
        description="Metric by which checkpoints are compared, highest best: val-core/{validation name}/acc/mean@{k}. "
        "Left out, mean@k of the first validation set.",
    )
    resume_from: str | None = Field(
        default=None,
        max_length=1024,
        pattern=RESUME_PATTERN,
        description="Start from another run's checkpoint: its URI, `run-id` (its newest) or `run-id@step`. "
        "The job's own checkpoints come first once it has any.",
    )


class FailureRule(SpecModel):
    """What to do about some failures. The first rule whose conditions all hold decides; an empty condition holds."""

    action: Literal["Restart", "Fail", "Ignore"] = Field(
        description="`Restart` the job from its newest checkpoint, `Fail` it at once, or `Ignore` the failure."
    )
    counted: bool = Field(
        default=True, description="Whether a restart counts against maxRestarts. Set false for faults of the cluster."
    )
    roles: Items[Role] = Field(default=(), max_length=3, description="Roles of the failed pod; empty is any.")
    exit_codes: Items[Annotated[int, Field(ge=0, le=255)]] = Field(
        default=(), max_length=64, description="Exit codes of the failed process; empty is any."
    )
    reasons: Items[Annotated[str, Field(max_length=128, pattern=r"^[A-Za-z]+$")]] = Field(
        default=(),
        max_length=32,
        description="Reasons of the failure such as Evicted, OOMKilled or Stalled; empty is any.",
    )


class Gang(SpecModel):
    """All pods of a job start together or none does."""

    scheduler: Literal["none", "volcano", "coscheduling", "kueue"] = Field(
        default="none",
        description="Which scheduler holds the pods back until all fit. `none` relies on startTimeoutSeconds, which "
        "frees a gang that got only a part of its pods.",
    )
    queue: str | None = Field(
        default=None,
        min_length=1,
        max_length=253,
        description="Queue of Volcano, or the LocalQueue of Kueue, which needs one.",
    )


class RunPolicy(SpecModel):
    """Restarts, deadlines and scheduling."""

    max_restarts: int = Field(
        default=5,
        ge=0,
        le=9_000,
        description="Counted restarts before the job fails. Evictions, preemptions and lost nodes are not counted, "
        "so five bounds faults of the job itself.",
    )
    failure_rules: Items[FailureRule] = Field(
        default=(),
        max_length=32,
        description="Rules that come before the built-in ones: first match decides. Bad specs, data and models are "
        "never retried.",
    )
    backoff_seconds: Seconds = Field(
        default=10, description="Seconds before the first counted restart; doubled for each one after it."
    )
    backoff_max_seconds: Seconds = Field(default=600, description="Longest wait in seconds before a restart.")
    start_timeout_seconds: Seconds = Field(
        default=1800,
        description="Seconds from the first pod of an attempt until all are ready. Past it, the pods are freed and "
        "tried again; half an hour covers image and model downloads.",
    )
    stall_timeout_seconds: Seconds = Field(
        default=3600,
        description="Seconds without a finished step after which an attempt is hung and ended, with its stacks in "
        "the log. An hour is twice a step of the paper's 32B run.",
    )
    grace_period_seconds: Seconds = Field(
        default=300, description="Seconds a stopping trainer has to write a checkpoint before it is killed."
    )
    active_deadline_seconds: Seconds | None = Field(
        default=None, description="Seconds after which the job is failed whatever it does; left out, never."
    )
    ttl_seconds_after_finished: Annotated[int, Field(ge=0, le=315_360_000)] | None = Field(
        default=None,
        description="Seconds after its end when the DAPOJob is deleted; left out, never. Curves and checkpoints stay.",
    )
    gang: Gang = Field(default=Gang(), description="Gang scheduling.")
    priority_class_name: str | None = Field(
        default=None, min_length=1, max_length=253, description="PriorityClass of the job's pods."
    )


class Stores(SpecModel):
    """Where the curves and objects of a job on Kubernetes go."""

    secret_name: Annotated[str, Field(max_length=253, pattern=r"^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$")] = Field(
        default="dapo-stores",
        description="Secret in the job's namespace with the metadata DSN and the S3 keys, least privilege each. "
        "The chart makes one of this name in every job namespace. Not used by `dapo run`.",
    )
