"""Names of the logs of a run's pods in its object store, where they outlive the pods. Pure.

    {run}/logs/attempt-2/trainer-0/000001.log, 000002.log, ...    what one pod printed, in parts

A pod keeps its first part and its newest ones, so that how it began and how it ended are known; a gap in the numbers is
what was left out. The newest part is replaced as it grows.
"""

import re
from dataclasses import dataclass
from typing import Final, cast

from dapo_core.naming import ROLES, Role

PART_BYTES: Final = 256 * 1024
# Of each pod: 8 MiB.
KEPT_PARTS: Final = 32
# Of each run: the head of an attempt deletes the logs of older ones.
KEPT_ATTEMPTS: Final = 10

_KEY: Final = re.compile(rf"attempt-(\d+)/({'|'.join(ROLES)})-(\d+)/(\d{{6,}})\.log")


def logs_prefix(run_id: str) -> str:
    """The key prefix of the logs of a run's pods, with the trailing slash."""
    return f"{run_id}/logs/"


@dataclass(frozen=True, order=True)
class PodLog:
    """The log of one pod of one attempt."""

    attempt: int
    role: Role
    index: int

    def prefix(self, run_id: str) -> str:
        """The key prefix of its parts, with the trailing slash."""
        return f"{logs_prefix(run_id)}attempt-{self.attempt}/{self.pod}/"

    def key(self, run_id: str, part: int) -> str:
        """The key of one part; the first is 1."""
        return f"{self.prefix(run_id)}{part:06d}.log"

    @property
    def pod(self) -> str:
        """The pod within its attempt, such as `trainer-0`."""
        return f"{self.role}-{self.index}"


def parse_log_key(run_id: str, key: str) -> tuple[PodLog, int] | None:
    """The log and the number of the part that a key names; None for any other key."""
    match = _KEY.fullmatch(key.removeprefix(logs_prefix(run_id)))
    if match is None:
        return None
    attempt, role, index, part = match.groups()
    return PodLog(int(attempt), cast(Role, role), int(index)), int(part)


def parts_left_out(parts: int) -> range:
    """The numbers of the parts that are no longer kept when `parts` have been begun."""
    return range(2, max(2, parts - KEPT_PARTS + 2))
