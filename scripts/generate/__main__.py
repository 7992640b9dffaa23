"""`python scripts/generate --write`: the generated files, or `--check` that they are up to date."""

import argparse
import sys
from typing import Final

from generated_files import stale, write

UP_TO_DATE: Final = "All generated files are up to date."


def main() -> int:
    """Exit code 0 when all files are up to date or were written, 1 when --check found others."""
    parser = argparse.ArgumentParser(prog="python scripts/generate", description=__doc__)
    group = parser.add_mutually_exclusive_group(required=True)
    group.add_argument("--write", action="store_true", help="write the files that are out of date")
    group.add_argument("--check", action="store_true", help="only report the files that are out of date")
    if parser.parse_args().write:
        print("\n".join(f"Wrote {path}." for path in write()) or UP_TO_DATE)
        return 0
    paths = stale()
    print(
        "\n".join(f"{path} is out of date: run `make generate`." for path in paths)
        or "All generated files are up to date."
    )
    return 1 if paths else 0


if __name__ == "__main__":
    sys.exit(main())
