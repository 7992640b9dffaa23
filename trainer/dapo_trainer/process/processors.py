"""How many processors this process may use: its affinity, and the CPU limit of its container."""

import math
import os
from pathlib import Path
from typing import Final

CGROUPS: Final = Path("/sys/fs/cgroup")


def usable_processors(cgroups: Path = CGROUPS) -> int:
    """At least 1; a limit of 2.5 processors counts as 3. `os.cpu_count` knows the machine's alone."""
    available = len(os.sched_getaffinity(0))
    limit = _limit(cgroups)
    return available if limit is None else max(1, min(available, math.ceil(limit)))


def _limit(cgroups: Path) -> float | None:
    """In processors, of cgroup version 2 or 1; None where there is none."""
    try:
        if (unified := cgroups / "cpu.max").exists():
            quota, period = unified.read_text().split()
        else:
            quota = (cgroups / "cpu" / "cpu.cfs_quota_us").read_text().strip()
            period = (cgroups / "cpu" / "cpu.cfs_period_us").read_text()
        return None if quota in ("max", "-1") else int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return None
