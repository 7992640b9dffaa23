"""Why an attempt ended: exit codes, reasons, and the one table from exceptions to both.

The trainer, `dapo run`, `dapo evaluate`, the operator, its runbooks and a job's `failureRules` all use these names.
"""

from collections.abc import Mapping
from enum import IntEnum, StrEnum
from typing import Final, NamedTuple

from dapo_core import errors


class ExitCode(IntEnum):
    """How a trainer process ended.

    2 and 10-12 are never retried, 20-21 follow the spec, 143 restarts without counting; 1, 15, 30, 31 and 137 count
    as restarts.
    """

    DONE = 0
    CRASHED = 1
    USAGE = 2
    SPEC = 10
    DATA = 11
    MODEL = 12
    NODE_UNFIT = 15
    SAMPLING_EXHAUSTED = 20
    GUARD = 21
    DISTRIBUTED = 30
    STORES = 31
    KILLED = 137
    TERMINATED = 143


class Reason(StrEnum):
    """Reasons of conditions, events and attempts: what programs match on, so they never change their spelling.

    A guard that ends an attempt gives its own name as the reason (`dapo_core.jobspec.guard_fields`).
    """

    # The spec
    SPEC_ACCEPTED = "SpecAccepted"
    APPLIES_NEXT_ATTEMPT = "AppliesAtNextAttempt"
    SPEC_CHANGED = "SpecChanged"
    # Waiting and starting
    SUSPENDED_BY_USER = "SuspendedByUser"
    SUSPENDED_BY_GUARD = "SuspendedByGuard"
    SUSPENDED_BY_SAMPLING = "SuspendedBySampling"
    WAITING_FOR_QUOTA = "WaitingForQuota"
    QUOTA_RESERVED = "QuotaReserved"
    QUOTA_RELEASED = "QuotaReleased"
    DEACTIVATED = "DeactivatedInQueue"
    STARTING = "Starting"
    RESUMED = "Resumed"
    PODS_READY = "PodsReady"
    START_TIMEOUT = "StartTimeout"
    BACKING_OFF = "BackingOff"
    ENDING = "Ending"
    DELETED = "Deleted"
    # What keeps pods from starting
    QUOTA_EXCEEDED = "QuotaExceeded"
    POD_REFUSED = "PodRefused"
    NODES_AVOIDED = "NodesAvoided"
    NODES_FORGIVEN = "NodesForgiven"
    NAME_TAKEN = "NameTaken"
    RUN_IN_USE = "RunInUse"
    PODS_REMAIN = "PodsRemain"
    GANG_SCHEDULER_MISSING = "GangSchedulerMissing"
    API_REFUSED = "ApiRefused"
    UNSCHEDULABLE = "Unschedulable"
    CONTAINER_WAITING = "ContainerWaiting"
    # Rollouts
    ROLLOUTS_READY = "RolloutsReady"
    NO_ROLLOUTS = "NoRollouts"
    # Training
    TRAINING = "Training"
    RESTARTING = "Restarting"
    STALLED = "Stalled"
    GUARD = "Guard"
    HEALTHY = "Healthy"
    PROGRESS_READ = "ProgressRead"
    METADATA_READ_ONLY = "MetadataReadOnly"
    NO_METADATA_STORE = "NoMetadataStore"
    METADATA_UNREACHABLE = "MetadataUnreachable"
    # Faults of the job, counted
    NODE_UNFIT = "NodeUnfit"
    DISTRIBUTED_FAULT = "DistributedFault"
    DEVICE_FAULT = "DeviceFault"
    STORES_UNREACHABLE = "StoresUnreachable"
    CHECKPOINT_UNUSABLE = "CheckpointUnusable"
    OUT_OF_MEMORY = "OOMKilled"
    KILLED = "Killed"
    CRASHED = "Crashed"
    # Faults of the cluster, not counted
    EVICTED = "Evicted"
    DRAINED = "Drained"
    NODE_REJECTED = "NodeRejected"
    PREEMPTED = "Preempted"
    NODE_LOST = "NodeLost"
    POD_DELETED = "PodDeleted"
    TERMINATED = "Terminated"
    # Ends
    COMPLETED = "Completed"
    USAGE = "Usage"
    INVALID_SPEC = "InvalidSpec"
    BAD_DATA = "BadData"
    MODEL_UNLOADABLE = "ModelUnloadable"
    SAMPLING_EXHAUSTED = "SamplingExhausted"
    TOO_MANY_RESTARTS = "TooManyRestarts"
    DEADLINE_EXCEEDED = "DeadlineExceeded"


# The reason of a process that left no last words.
OF_EXIT_CODE: Final[Mapping[ExitCode, Reason]] = {
    ExitCode.DONE: Reason.COMPLETED,
    ExitCode.CRASHED: Reason.CRASHED,
    ExitCode.USAGE: Reason.USAGE,
    ExitCode.SPEC: Reason.INVALID_SPEC,
    ExitCode.DATA: Reason.BAD_DATA,
    ExitCode.MODEL: Reason.MODEL_UNLOADABLE,
    ExitCode.NODE_UNFIT: Reason.NODE_UNFIT,
    ExitCode.SAMPLING_EXHAUSTED: Reason.SAMPLING_EXHAUSTED,
    ExitCode.GUARD: Reason.GUARD,
    ExitCode.DISTRIBUTED: Reason.DISTRIBUTED_FAULT,
    ExitCode.STORES: Reason.STORES_UNREACHABLE,
    ExitCode.KILLED: Reason.KILLED,
    ExitCode.TERMINATED: Reason.TERMINATED,
}


class End(NamedTuple):
    """What a process that ends by an exception exits with, and the reason it gives."""

    code: ExitCode
    reason: Reason


CRASH: Final = End(ExitCode.CRASHED, Reason.CRASHED)
# The most derived class listed here decides; an exception of none of them is a crash.
OF_ERROR: Final[Mapping[type[BaseException], End]] = {
    errors.SpecError: End(ExitCode.SPEC, Reason.INVALID_SPEC),
    errors.DataError: End(ExitCode.DATA, Reason.BAD_DATA),
    errors.ModelError: End(ExitCode.MODEL, Reason.MODEL_UNLOADABLE),
    errors.NodeUnfitError: End(ExitCode.NODE_UNFIT, Reason.NODE_UNFIT),
    errors.SamplingExhaustedError: End(ExitCode.SAMPLING_EXHAUSTED, Reason.SAMPLING_EXHAUSTED),
    errors.DistributedFaultError: End(ExitCode.DISTRIBUTED, Reason.DISTRIBUTED_FAULT),
    errors.StoreError: End(ExitCode.STORES, Reason.STORES_UNREACHABLE),
    errors.CheckpointError: End(ExitCode.STORES, Reason.CHECKPOINT_UNUSABLE),
    errors.StoppedError: End(ExitCode.TERMINATED, Reason.TERMINATED),
    KeyboardInterrupt: End(ExitCode.TERMINATED, Reason.TERMINATED),
}
# Exceptions of engines, which core does not import, by the package that defines them.
OF_PACKAGE: Final[Mapping[str, End]] = {
    "hydra": End(ExitCode.SPEC, Reason.INVALID_SPEC),
    "omegaconf": End(ExitCode.SPEC, Reason.INVALID_SPEC),
    "ray": End(ExitCode.DISTRIBUTED, Reason.DISTRIBUTED_FAULT),
}
# Earlier spellings: pods of an older image still write them, and a job's failureRules may still name them.
FORMER: Final[Mapping[str, Reason]] = {
    "Spec": Reason.INVALID_SPEC,
    "BadConfiguration": Reason.INVALID_SPEC,
    "Data": Reason.BAD_DATA,
    "Model": Reason.MODEL_UNLOADABLE,
    "Store": Reason.STORES_UNREACHABLE,
    "StoreUnreachable": Reason.STORES_UNREACHABLE,
    "StoreBehind": Reason.STORES_UNREACHABLE,
    "Rejected": Reason.STORES_UNREACHABLE,
    "ObjectNotFound": Reason.STORES_UNREACHABLE,
    "Checkpoint": Reason.CHECKPOINT_UNUSABLE,
    "Stopped": Reason.TERMINATED,
}


def end_of(error: BaseException) -> End:
    """The exit code and reason of a process that `error` ends."""
    cause = cause_of(error)
    # Ray's error may itself be of the cause's class.
    for kind in (*type(error).__mro__, *type(cause).__mro__):
        if kind in OF_ERROR:
            return OF_ERROR[kind]
    packages = (type(raised).__module__.partition(".")[0] for raised in (cause, error))
    return next((OF_PACKAGE[package] for package in packages if package in OF_PACKAGE), CRASH)


def cause_of(error: BaseException) -> BaseException:
    """What was raised in the other process, where Ray wrapped it; else `error` itself."""
    cause = getattr(error, "cause", None)
    return cause if isinstance(cause, BaseException) else error


def error_for(exit_code: int) -> type[errors.DapoError]:
    """The class of the errors that end a process with this code, to raise them again elsewhere; DapoError for a code
    that none gives."""
    kinds = (kind for kind, end in OF_ERROR.items() if end.code == exit_code and issubclass(kind, errors.DapoError))
    return next(kinds, errors.DapoError)


def reason_of(exit_code: int | None) -> Reason:
    """The reason that an exit code gives on its own; Crashed for a code that means nothing here."""
    return OF_EXIT_CODE[ExitCode(exit_code)] if exit_code in set(ExitCode) else Reason.CRASHED


def current(reason: str) -> str:
    """A reason as it is spelled today; one that is not of the former spellings is returned as it is."""
    return FORMER.get(reason, reason)
