"""The files that are generated in whole or in part, and from what."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import attacks
import chart_values
import commands_page
import operator_faults
import permissions
import queue_situations
import runbooks
import s3_server_table
import store_faults
from metrics_reference import metrics_reference
from reference import reference

from dapo_core.crd.definition import crd_yaml

ROOT: Final = Path(__file__).resolve().parents[2]
# By path: the file's content as it should be, given its present content, whose hand-written parts stay.
FILES: Final[Mapping[str, Callable[[str], str]]] = {
    # Under files/, so that a template can wrap it: {{ .Files.Get "files/dapojobs.yaml" }}.
    "charts/dapo/files/dapojobs.yaml": lambda old: crd_yaml(),
    "charts/dapo/README.md": chart_values.page,
    "docs/commands.md": lambda old: commands_page.page(),
    "docs/install.md": permissions.page,
    "docs/metrics.md": lambda old: metrics_reference(),
    "docs/operator-faults.md": lambda old: operator_faults.page(),
    "docs/operator.md": runbooks.page,
    "docs/queues.md": queue_situations.page,
    "docs/security.md": attacks.page,
    "docs/store-faults.md": lambda old: store_faults.page(),
    "docs/stores.md": s3_server_table.page,
    "docs/reference.md": lambda old: reference(),
}


def stale(root: Path = ROOT) -> list[str]:
    """Paths of generated files that are missing or out of date. Raises ValueError when a file has lost the lines
    between which its generated part stands."""
    return [path for path, new in FILES.items() if _read(root / path) != new(_read(root / path))]


def write(root: Path = ROOT) -> list[str]:
    """Write the files that are out of date; returns their paths. Raises ValueError as `stale` does."""
    paths = stale(root)
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(FILES[path](_read(root / path)), encoding="utf-8")
    return paths


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else ""
