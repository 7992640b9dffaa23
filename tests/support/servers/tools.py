"""The programs behind the tests' servers, by name: etcd, Kubernetes', kwok, CoreDNS, MinIO, Helm."""

import subprocess
from functools import cache
from pathlib import Path

_SCRIPT = Path(__file__).parents[3] / "tests" / "kit" / "tools.sh"


class MissingToolError(Exception):
    """A tool is neither installed nor in the cache, and could not be built; the message says what is missing."""


@cache
def tool(name: str) -> Path:
    """The absolute path of the program `name` (`kubectl` as well as `kube`), made first where that is needed."""
    made = subprocess.run([str(_SCRIPT), name], capture_output=True, text=True)
    if made.returncode != 0:
        raise MissingToolError(made.stderr.strip())
    return Path(made.stdout.strip())
