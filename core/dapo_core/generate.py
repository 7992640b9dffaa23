"""Files generated from the models: `python -m dapo_core.generate --write`, or `--check` that they are up to date."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from dapo_core.jobspec.crd import crd_yaml
from dapo_core.metrics_reference import metrics_reference
from dapo_core.reference import reference

ROOT: Final = Path(__file__).resolve().parents[2]
FILES: Final[dict[str, Callable[[], str]]] = {
    # Under files/, so that a template can wrap it: {{ .Files.Get "files/dapojobs.yaml" }}.
    "charts/dapo/files/dapojobs.yaml": crd_yaml,
    "docs/reference.md": reference,
    "docs/metrics.md": metrics_reference,
}


def stale(root: Path = ROOT) -> list[str]:
    """Paths of generated files that are missing or differ from what the models generate now."""
    return [path for path, make in FILES.items() if _read(root / path) != make()]


def write(root: Path = ROOT) -> list[str]:
    """Writes what is stale and returns its paths."""
    paths = stale(root)
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(FILES[path](), encoding="utf-8")
    return paths


def _read(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.is_file() else None


def main(arguments: list[str]) -> int:
    """Returns 0 if all files are up to date (or were written), 1 if --check found a stale one, 2 for wrong usage."""
    match arguments:
        case ["--write"]:
            print("\n".join(f"wrote {path}" for path in write()) or "nothing to write")
            return 0
        case ["--check"]:
            paths = stale()
            print(
                "\n".join(f"{path} is stale: run python -m dapo_core.generate --write" for path in paths)
                or "up to date"
            )
            return 1 if paths else 0
        case _:
            print("usage: python -m dapo_core.generate --check | --write", file=sys.stderr)
            return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
