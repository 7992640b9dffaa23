"""Exit codes of a trainer process, read by `dapo run` and by the operator to decide what comes next."""

from enum import IntEnum


class ExitCode(IntEnum):
    """How a trainer process ended. 10-12 are never retried, 20-21 follow the spec, 30, 31 and 137 count as restarts."""

    DONE = 0
    USAGE = 2
    SPEC = 10
    DATA = 11
    MODEL = 12
    SAMPLING_EXHAUSTED = 20
    GUARD = 21
    DISTRIBUTED = 30
    STORES = 31
    KILLED = 137
    TERMINATED = 143
