"""One exception of each kind that a trainer process can end by."""

from dapo_core.errors import (
    CheckpointError,
    DataError,
    DistributedFaultError,
    ModelError,
    NodeUnfitError,
    NotInstalledError,
    Problem,
    RunBusyError,
    SamplingExhaustedError,
    SpecError,
    StoppedError,
    StoreError,
)


class RayActorError(Exception):
    """As Ray's own: what counts is its module."""

    def __init__(self, message: str, cause: BaseException | None = None) -> None:
        super().__init__(message)
        if cause is not None:
            self.cause = cause


class ConfigKeyError(Exception):
    """As OmegaConf's own."""


RayActorError.__module__, ConfigKeyError.__module__ = "ray.exceptions", "omegaconf.errors"

# Exception, exit code, reason and message
ENDS: dict[str, tuple[BaseException, int, str, str]] = {
    "spec": (SpecError([Problem("a", "a is 1.")]), 10, "InvalidSpec", "a is 1."),
    "configuration": (ConfigKeyError("no key x\n  full_key: x"), 10, "InvalidSpec", "full_key: x"),
    "data": (DataError("row 3"), 11, "BadData", "row 3"),
    "model": (ModelError("torn"), 12, "ModelUnloadable", "torn"),
    "node unfit": (NodeUnfitError("Node a is unfit"), 15, "NodeUnfit", "Node a is unfit"),
    "sampling exhausted": (SamplingExhaustedError("only 2 of 4"), 20, "SamplingExhausted", "only 2 of 4"),
    "distributed fault": (DistributedFaultError("engine"), 30, "DistributedFault", "engine"),
    "a Ray fault, by its last line": (
        RayActorError("Traceback:\n  File x\n\nOSError: the actor died\n"),
        30,
        "DistributedFault",
        "OSError: the actor died",
    ),
    "a bug in another process": (
        RayActorError("Traceback:\n  File x\n\nValueError: y\n", ValueError("y")),
        30,
        "DistributedFault",
        "ValueError: y",
    ),
    "stores": (StoreError("down"), 31, "StoresUnreachable", "down"),
    "stores, in another process": (
        RayActorError("Traceback:\nStoreError: down", StoreError("down")),
        31,
        "StoresUnreachable",
        "down",
    ),
    "checkpoint": (CheckpointError("torn"), 31, "CheckpointUnusable", "torn"),
    "stopped between steps": (StoppedError(), 143, "Terminated", "Stopped on request."),
    "stopped at the start": (KeyboardInterrupt(), 143, "Terminated", "Stopped on request."),
    "another mistake": (RunBusyError("held"), 1, "Crashed", "held"),
    "packages are missing": (NotInstalledError("verl"), 1, "Crashed", "verl"),
    "a bug": (ValueError("x\ny"), 1, "Crashed", "ValueError: y"),
    "a bug without a message": (KeyError(), 1, "Crashed", "KeyError"),
}
