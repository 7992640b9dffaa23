"""The table of docs/stores.md that says which tests passed on which S3 server, as `make s3-servers` kept them."""

import json
from pathlib import Path
from typing import Any, Final

from sections import with_section

KEPT: Final = Path(__file__).parents[2] / "tests" / "kit" / "s3-servers.json"
NAMES: Final = {
    "minio": "MinIO",
    "versitygw": "Versity S3 Gateway",
    "azure": "Versity S3 Gateway, Azurite:",
    "ceph": "Ceph",
}
BEGIN: Final = "<!-- generated from tests/kit/s3-servers.json, which `make s3-servers` writes -->"
END: Final = "<!-- end of the generated table -->"


def page(old: str) -> str:
    """docs/stores.md with the table. Raises ValueError where its place is missing."""
    kept: dict[str, Any] = json.loads(KEPT.read_text(encoding="utf-8"))
    heads = [f"{NAMES[name]} {server['version']}" for name, server in kept.items()]
    rows = [f"| tests, passed of all | {' | '.join(heads)} |", f"|---|{'---|' * len(heads)}"]
    for label in next(iter(kept.values()))["passed"]:
        cells = ["{} of {}".format(*server["passed"][label]) for server in kept.values()]
        rows.append(f"| {label} | {' | '.join(cells)} |")
    return with_section(old, BEGIN, END, "\n".join(rows) + "\n")
