"""What was found of one property of a machine, and the remedy when it does not do. Pure."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class CheckVerdict(StrEnum):
    """FAILED: a run cannot work here. WARNING: it works, but slowly or not for long. SKIPPED: does not apply here."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"
    SKIPPED = "skipped"


@dataclass(frozen=True)
class Check:
    """`found`: what was measured or read, with its unit; `remedy`: what to do, empty when there is nothing to do."""

    name: str
    verdict: CheckVerdict
    found: str
    remedy: str = ""

    def as_json(self) -> dict[str, Any]:
        """As `dapo doctor --json` prints it."""
        return asdict(self)

    @property
    def sentence(self) -> str:
        """Name, finding and remedy on one line."""
        return f"{self.name}: {self.found}" + (f" ({self.remedy})" if self.remedy else "")


def ok(name: str, found: str) -> Check:
    return Check(name, CheckVerdict.OK, found)


def warning(name: str, found: str, remedy: str) -> Check:
    return Check(name, CheckVerdict.WARNING, found, remedy)


def failed(name: str, found: str, remedy: str) -> Check:
    return Check(name, CheckVerdict.FAILED, found, remedy)


def skipped(name: str, found: str) -> Check:
    return Check(name, CheckVerdict.SKIPPED, found)


def failures(checks: Iterable[Check]) -> list[Check]:
    """The checks because of which a run cannot work."""
    return [check for check in checks if check.verdict == CheckVerdict.FAILED]
