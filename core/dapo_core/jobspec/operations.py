"""How a run is kept going, and where its results are stored: checkpoints, run policy and stores."""

from typing import Annotated, Literal

from pydantic import Field

from dapo_core.jobspec import patterns
from dapo_core.jobspec.base import Items, Seconds, SpecModel, WritableUri
from dapo_core.naming import Role


class Checkpoints(SpecModel):
    """Where checkpoints are stored and which are kept."""

    uri: WritableUri | None = Field(
        default=None,
        description="Folder or bucket for the run's objects: s3://bucket/prefix, file:///folder or pvc://claim/folder. "
        "If not set, the bucket in the stores' Secret on Kubernetes and runs/store on one machine.",
    )
    keep_last: int = Field(
        default=2,
        ge=1,
        le=1000,
        description="Number of newest checkpoints to keep. Two, so that one is left if the newest is corrupt.",
    )
    keep_best: int = Field(
        default=0, ge=0, le=1000, description="Number of best checkpoints to keep as well, by `bestMetric`."
    )
    best_metric: str | None = Field(
        default=None,
        max_length=253,
        pattern=patterns.BEST_METRIC.regex,
        description="Metric by which checkpoints are compared, higher is better: "
        "val-core/{validation name}/acc/mean@{k}. If not set, mean@k of the first validation set.",
    )
    resume_from: str | None = Field(
        default=None,
        max_length=1024,
        pattern=patterns.RESUME_FROM.regex,
        description="Checkpoint of another run to start from: its URI, `run-id` (the newest) or `run-id@step`. "
        "Once the job has checkpoints of its own, it resumes from those.",
    )


class FailureRule(SpecModel):
    """What to do about some failures. The first rule whose conditions all match decides; an empty condition matches."""

    action: Literal["Restart", "Fail", "Ignore"] = Field(
        description="`Restart` the job from its newest checkpoint, `Fail` it immediately, or `Ignore` the failure."
    )
    counted: bool = Field(
        default=True,
        description="Whether a restart counts towards maxRestarts. Set to false for faults of the cluster.",
    )
    roles: Items[Role] = Field(default=(), max_length=3, description="Roles of the failed pod; empty means any.")
    exit_codes: Items[Annotated[int, Field(ge=0, le=255)]] = Field(
        default=(), max_length=64, description="Exit codes of the failed process; empty means any."
    )
    reasons: Items[Annotated[str, Field(max_length=128, pattern=patterns.REASON.regex)]] = Field(
        default=(),
        max_length=32,
        description="Reasons of the failure, such as Evicted, OOMKilled or Stalled; empty means any.",
    )


class Gang(SpecModel):
    """Gang scheduling: all pods of a job start together, or none does."""

    scheduler: Literal["none", "volcano", "coscheduling", "kueue", "kai", "kubernetes"] = Field(
        default="none",
        description="Scheduler that holds the pods back until all of them fit (docs/queues.md); `kubernetes` is "
        "kube-scheduler's own PodGroup. `none` relies on startTimeoutSeconds, after which the pods of an incomplete "
        "gang are deleted.",
    )
    queue: str | None = Field(
        default=None,
        min_length=1,
        max_length=253,
        description="Queue of Volcano or KAI, or LocalQueue of Kueue. Required for Kueue, unless the job has the label "
        "`kueue.x-k8s.io/queue-name`.",
    )


class RunPolicy(SpecModel):
    """Restarts, deadlines and scheduling."""

    max_restarts: int = Field(
        default=5,
        ge=0,
        le=9_000,
        description="Counted restarts before the job fails. Evictions, preemptions and lost nodes are not counted, "
        "so that five limits the job's own faults. 20 new steps clear the count. Raising it resumes a job that failed "
        "because of it.",
    )
    max_uncounted_restarts: int = Field(
        default=30,
        ge=0,
        le=9_000,
        description="Restarts for one reason that are not counted, in a row and without a step, before the job fails: "
        "pods that cannot start, evictions, lost nodes. Preemptions and deletions are not limited. Raising it resumes "
        "a job that failed because of it.",
    )
    failure_rules: Items[FailureRule] = Field(
        default=(),
        max_length=32,
        description="Rules that are evaluated before the built-in ones; the first match decides. An "
        "invalid spec, invalid data and a model that cannot be loaded are never retried.",
    )
    backoff_seconds: Seconds = Field(
        default=10,
        description="Seconds before the first counted restart, or before the second if the attempt had finished a new "
        "step; doubled for each further one.",
    )
    backoff_max_seconds: Seconds = Field(default=600, description="Maximum seconds before a restart.")
    start_timeout_seconds: Seconds = Field(
        default=1800,
        description="Maximum seconds from the first pod of an attempt until all are ready. After that, the pods are "
        "deleted and recreated; half an hour covers image and model downloads.",
    )
    stall_timeout_seconds: Seconds = Field(
        default=3600,
        description="Seconds without a finished step after which an attempt counts as stalled and is ended, with its "
        "stack traces in the log. An hour is twice a step of the paper's 32B run.",
    )
    grace_period_seconds: Seconds = Field(
        default=300,
        description="Seconds that a stopping trainer has to save a checkpoint before it is killed. While responses are "
        "generated or log-probs computed it saves the step before; updates are first finished, so on large models set "
        "more than the updates of a step take.",
    )
    active_deadline_seconds: Seconds | None = Field(
        default=None,
        description="Seconds after which the job fails; on Kubernetes those in which it has pods, without suspension, "
        "backoff and the time in a queue. Raising it resumes a job that failed because of it. If not set, never.",
    )
    ttl_seconds_after_finished: Annotated[int, Field(ge=0, le=315_360_000)] | None = Field(
        default=None,
        description="Seconds from the job's end until the DAPOJob is deleted. If not set, it is kept. "
        "Curves and checkpoints are always kept.",
    )
    preflight: Literal["Require", "Warn", "Skip"] = Field(
        default="Require",
        description="What follows when a pod of a GPU job finds, before it fetches the model, that its node cannot "
        "train (as `dapo doctor` does): `Require` ends the attempt with NodeUnfit, `Warn` only logs it.",
    )
    disruption: Literal["CheckpointAndMove", "Deny"] = Field(
        default="CheckpointAndMove",
        description="What follows when a node of the job is drained: it is cordoned, about to be taken away (spot, "
        "autoscaler) or shutting down, or a pod is evicted. `CheckpointAndMove` saves a checkpoint and restarts the "
        "job elsewhere, which is not counted. `Deny` ignores cordons and refuses evictions while the job has pods.",
    )
    restart: Literal["Recreate", "InPlace"] = Field(
        default="Recreate",
        description="What becomes of trainer pods that still run when an attempt has ended. `Recreate` replaces them. "
        "`InPlace` keeps them, with node, image and model, and restarts their processes for the next attempt; a pod on "
        "a bad node is replaced, and so are all after a stall, an edit of the job or an attempt in place that finished "
        "no step. With a gang scheduler, pods are always replaced.",
    )
    gang: Gang = Field(default=Gang(), description="Gang scheduling.")
    priority_class_name: str | None = Field(
        default=None, min_length=1, max_length=253, description="PriorityClass of the job's pods."
    )


TrackerName = Literal["wandb", "mlflow", "tensorboard"]


class Stores(SpecModel):
    """Where the curves and objects of a job on Kubernetes are stored."""

    secret_name: Annotated[str, Field(max_length=253, pattern=patterns.SECRET_NAME.regex)] = Field(
        default="dapo-stores",
        description="Secret in the job's namespace with the URL of the metadata database and the S3 keys, each with "
        "least privilege. The chart creates one with this name in every job namespace. Not used by `dapo run`.",
    )
