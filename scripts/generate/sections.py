"""Pages that are written by hand but for one generated section between two marker lines, and the tests they name."""

import re
from pathlib import Path
from typing import Final

TESTS: Final = Path(__file__).parents[2] / "tests"


def check_test(test: str, source: str) -> None:
    """Raises ValueError, which names `source`, for a test (file::test) that does not exist."""
    path, _, name = test.partition("::")
    if not re.search(rf"^ *def {name}\(", (TESTS / path).read_text(encoding="utf-8"), re.MULTILINE):
        raise ValueError(f"There is no test {test}; correct {source}.")


def with_section(page: str, begin: str, end: str, section: str) -> str:
    """The page with `section` between the lines `begin` and `end`. Raises ValueError when it has no such lines."""
    before, found_begin, rest = page.partition(begin)
    _, found_end, after = rest.partition(end)
    if not found_begin or not found_end:
        raise ValueError(f"The page has no lines {begin} and {end}, between which its generated section belongs.")
    return f"{before}{begin}\n\n{section}\n{end}{after}"
