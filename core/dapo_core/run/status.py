"""The status of a DAPOJob: conditions with reasons, the last values of its progress, and its attempts."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

# In the order in which `kubectl describe` shows the conditions: that of a job's life.
ConditionType = Literal[
    "SpecAccepted",
    "Suspended",
    "QuotaReserved",
    "NodesAvoided",
    "PodsReady",
    "RolloutsDegraded",
    "Training",
    "Stalled",
    "Degraded",
    "ProgressKnown",
    "Succeeded",
    "Failed",
]
MAX_ATTEMPTS_KEPT = 10
MAX_NODE_FAULTS = 32
MAX_ROLLOUTS = 1000
MAX_TRAINERS = 1000


class StatusModel(BaseModel):
    """A part of the status. Unknown fields are ignored: a newer operator may have written them."""

    model_config = ConfigDict(frozen=True, extra="ignore", alias_generator=to_camel, validate_by_name=True)


Time = Annotated[str, Field(json_schema_extra={"format": "date-time"})]


class Condition(StatusModel):
    """A Kubernetes condition."""

    type: ConditionType = Field(description="What the condition is about.")
    status: Literal["True", "False", "Unknown"] = Field(description="Whether it holds.")
    reason: str = Field(max_length=1024, description="CamelCase reason for programs.")
    message: str = Field(default="", max_length=32768, description="A sentence that names the next step.")
    last_transition_time: Time = Field(description="When `status` last changed.")
    observed_generation: int | None = Field(
        default=None, description="Generation of the spec that the condition refers to."
    )


class Progress(StatusModel):
    """The last values, rounded for `kubectl get`; curves are in the metadata store."""

    step: int | None = Field(default=None, description="Last finished step.")
    total_steps: int | None = Field(default=None, description="Total steps.")
    reward: float | None = Field(default=None, description="Mean reward of the step.")
    accuracy: float | None = Field(default=None, description="Share of correct responses before filtering.")
    entropy: float | None = Field(default=None, description="Mean entropy in nats per token.")
    mean_probability: float | None = Field(default=None, description="Mean probability of the sampled tokens.")
    response_length: float | None = Field(default=None, description="Mean response length in tokens.")
    seconds_per_step: float | None = Field(
        default=None, description="Median seconds per step over the last 20 steps, without checkpoints."
    )
    eta_seconds: int | None = Field(
        default=None, description="Estimated seconds left, with validations and checkpoints."
    )
    step_at: Time | None = Field(default=None, description="When the operator saw that step finished.")
    # A printer column cannot compute, so the time left is also there in a readable form.
    eta: str | None = Field(default=None, description="etaSeconds in a readable form, such as 2h13m.")


class TimeSpent(StatusModel):
    """What the time with pods was spent on, in whole seconds; read again every five minutes."""

    held_seconds: int = Field(description="Seconds with pods, of all attempts.")
    useful_seconds: int = Field(description="Seconds of the steps that count: of each step the newest attempt's.")
    lost_seconds: dict[str, int] = Field(
        default={},
        description="The rest that is decided, by cause: the reason of an attempt's end, Starting, BetweenSteps, "
        "NoRollouts, or Other.",
    )
    ettr: float | None = Field(
        default=None, description="Effective training time ratio: usefulSeconds as a share of useful and lost ones."
    )


class Attempt(StatusModel):
    """One attempt: one set of the job's pods, from start to end."""

    number: int = Field(description="1, 2, ...")
    started_at: Time = Field(description="When it was recorded, before any of its pods was created.")
    ended_at: Time | None = Field(default=None, description="When its last pod was gone.")
    from_step: int | None = Field(default=None, description="Step of the checkpoint it started from; 0 for the model.")
    to_step: int | None = Field(default=None, description="Last step it finished.")
    reason: str | None = Field(default=None, description="Why it ended.")
    exit_code: int | None = Field(
        default=None, description="Exit code of the process that ended it, or of the driver that was asked to end."
    )
    message: str | None = Field(default=None, max_length=1024, description="Why it ended, in a sentence.")
    role: str | None = Field(default=None, description="Role of the pod that ended it; unset if no pod did.")
    counted: bool | None = Field(default=None, description="Whether it counts against maxRestarts.")
    shape: str | None = Field(default=None, description="Digest of what the spec says about pods, to detect edits.")
    driver_spec: str | None = Field(
        default=None, description="Digest of the part of the spec that its driver reads, to detect edits."
    )
    pods: int | None = Field(default=None, description="Number of its pods when it started.")
    core: int | None = Field(default=None, description="Number of its pods whose loss ends it: all but rollouts.")
    rollouts: int | None = Field(default=None, description="Number of its rollouts when it started.")
    required_rollouts: int | None = Field(default=None, description="Number of rollouts that its driver waits for.")
    steps: int | None = Field(default=None, description="`schedule.steps` of the job file that it runs.")
    scheduled_at: Time | None = Field(
        default=None, description="When its first pod was scheduled; the start deadline counts from then."
    )
    ready_at: Time | None = Field(default=None, description="When all its pods were ready for the first time.")
    served_at: Time | None = Field(
        default=None, description="When a rollout was ready again after there was none; stalls count from then."
    )
    ending_at: Time | None = Field(
        default=None, description="When it began to end; its pods then have the grace period."
    )
    trainers_created_in: list[int] | None = Field(
        default=None,
        max_length=MAX_TRAINERS,
        description="For each trainer, the number of the attempt in which its pod was created; unset: this one.",
    )
    trainers_stay: bool | None = Field(default=None, description="Whether trainers stay for the next attempt.")


class RolloutLife(StatusModel):
    """The newest life of a rollout that was replaced or added, or one that is to start."""

    index: int = Field(description="Index of the rollout.")
    life: int = Field(description="1, 2, ...: the number at the end of the pod's name; the first has none.")
    since: Time = Field(description="When its pod was, or will be, created.")
    failures: int | None = Field(default=None, description="Lives before it, in a row, that ended early.")
    reason: str | None = Field(default=None, max_length=128, description="Why the life before it ended.")


class CheckpointRef(StatusModel):
    """The newest committed checkpoint."""

    step: int = Field(description="Its step.")
    uri: str = Field(description="Its URI.")


class NodeFault(StatusModel):
    """A fault of an attempt that its node may have caused."""

    node: str = Field(max_length=253, description="Name of the node.")
    at: Time = Field(description="When it was seen.")
    attempt: int = Field(description="Number of the attempt.")
    reason: str = Field(max_length=128, description="NodeUnfit, or DeviceFault for an NCCL or Xid error.")


class Pinned(StatusModel):
    """What an upgrade of the platform does not change of a run."""

    spec: str = Field(
        description="Digest of the spec but limits and the number of rollouts; an edit of it takes over what the "
        "platform has by then."
    )
    image: str = Field(description="Trainer image of pods whose template names none.")
    revision: str | None = Field(
        default=None, description="Digest of the job file with all defaults, and the end of its ConfigMap's name."
    )
    scaled_from: str | None = Field(
        default=None, description="The revision from which this one differs by the number of rollouts only."
    )
    images: dict[str, str] | None = Field(
        default=None, description="By image as it was named: the digest that the first attempt ran."
    )


class DAPOJobStatus(StatusModel):
    """Status of a DAPOJob, written by the operator."""

    observed_generation: int | None = Field(default=None, description="Generation of the spec last acted on.")
    phase: str | None = Field(default=None, description="The most important condition now, for `kubectl get`.")
    reason: str | None = Field(default=None, description="Why it is in that phase, in one word.")
    pods: str | None = Field(default=None, description="Ready pods of the newest attempt and all of it, such as 3/10.")
    attempt: int | None = Field(default=None, description="Number of the newest attempt.")
    restarts: str | None = Field(
        default=None, description="Restarts counted against maxRestarts, and all where there are more, as in 2 (66)."
    )
    gpus: int | None = Field(default=None, description="GPUs that an attempt requests.")
    conditions: list[Condition] = Field(default=[], max_length=16, description="Conditions, one of each type.")
    progress: Progress | None = Field(default=None, description="Last values of the run.")
    time: TimeSpent | None = Field(default=None, description="What the time with pods was spent on.")
    attempts: list[Attempt] = Field(default=[], max_length=MAX_ATTEMPTS_KEPT, description="The last ten attempts.")
    started_at: Time | None = Field(default=None, description="When the first attempt started.")
    next_attempt_at: Time | None = Field(default=None, description="When the next attempt starts, after a backoff.")
    restarts_counted: int | None = Field(default=None, description="Restarts counted against maxRestarts.")
    restarts_uncounted: dict[str, int] | None = Field(
        default=None, description="Uncounted restarts since the last step, by reason."
    )
    active_seconds: int | None = Field(
        default=None, description="Seconds that ended attempts have had pods, for activeDeadlineSeconds."
    )
    restarts_total: int | None = Field(default=None, description="All restarts.")
    stopped_generation: int | None = Field(
        default=None, description="Generation of the spec at which the job was suspended by a guard, or failed."
    )
    stopped_spec: str | None = Field(
        default=None, description="Digest of the spec at that generation, without the number of rollouts."
    )
    node_faults: list[NodeFault] | None = Field(
        default=None, max_length=MAX_NODE_FAULTS, description="Faults of nodes within the last day."
    )
    rollout_lives: list[RolloutLife] | None = Field(
        default=None, max_length=MAX_ROLLOUTS, description="Rollouts of the newest attempt that were replaced or added."
    )
    pinned: Pinned | None = Field(default=None, description="What an upgrade of the platform does not change.")
    checkpoint: CheckpointRef | None = Field(default=None, description="The newest committed checkpoint.")
    run_id: str | None = Field(default=None, description="The run in the metadata store.")
    rollout_replicas: int | None = Field(
        default=None, description="Rollout pods that exist, for the scale subresource."
    )
    rollout_selector: str | None = Field(default=None, description="Label selector of the rollout pods.")
    dashboard_url: Annotated[str | None, Field(alias="dashboardURL")] = Field(
        default=None, description="The run's page."
    )
