"""Which tests share a worker when several run at once (pytest-xdist), and in which order they go."""

from pathlib import PurePath

import pytest
from xdist.scheduler import LoadScopeScheduling

# Handed out whole. Runs on real engines take longest, so they come first, and one at a time: two would need 18 GB.
# Control planes come late, each with one worker: it lives until that worker has run its last test.
FIRST, LATE = ("real",), ("cluster", "chart")
# After them, file by file: what the workers have left to share, so that all of them end at the same time.
LAST = ("trainer",)


class SideBySide(LoadScopeScheduling):
    """Hands out the first and the late folders whole, and everything else file by file."""

    def _split_scope(self, nodeid: str) -> str:
        path = PurePath(nodeid.partition("::")[0])
        return path.parent.name if path.parent.name in FIRST + LATE else str(path)


def rank(item: pytest.Item) -> int:
    """Items are run by ascending rank."""
    folder, order = item.path.parent.name, LATE + LAST
    return order.index(folder) + 1 if folder in order else -(folder in FIRST)
