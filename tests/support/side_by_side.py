"""Which tests share a worker when several run at once (pytest-xdist), and in which order they go."""

from pathlib import PurePath

import pytest
from xdist.scheduler import LoadScopeScheduling

# Handed out whole. Runs on real engines take longest, so they come first, and one at a time: two would need 18 GB.
# Control planes come last, each with one worker: it lives until that worker has run its last test.
FIRST, LAST = ("real",), ("cluster", "chart")


class SideBySide(LoadScopeScheduling):
    """Hands out those folders whole, and everything else file by file."""

    def _split_scope(self, nodeid: str) -> str:
        path = PurePath(nodeid.partition("::")[0])
        return path.parent.name if path.parent.name in FIRST + LAST else str(path)


def rank(item: pytest.Item) -> int:
    """Items are run by ascending rank."""
    folder = item.path.parent.name
    return LAST.index(folder) + 1 if folder in LAST else -(folder in FIRST)
