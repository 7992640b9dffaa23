"""What people say of runs: a note, tags, stars, and that a run is archived. Pure.

Each is a row of its own, with who said it, so that two people who annotate a run at once lose nothing of each other.
What is taken back stays, marked as removed. Stars are personal; the rest is the same for all who see the run.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from dapo_core.errors import DapoError
from dapo_core.run.formatting import printable

AnnotationKind = Literal["note", "tag", "star", "archive"]
MAX_NOTE: Final = 10_000
MAX_TAG: Final = 60
MAX_TAGS: Final = 20


class AnnotationError(DapoError):
    """A note or a tag that is not taken."""

    user_mistake = True


@dataclass(frozen=True)
class AnnotationRow:
    """One annotation. `label` is the tag itself, or who gave the star, else empty; `value` is the note. `person` said
    so at `at`, in Unix seconds."""

    run_id: str
    kind: AnnotationKind
    label: str
    value: str
    person: str
    at: float
    removed: bool = False


@dataclass(frozen=True)
class RunAnnotations:
    """What people say of one run: the note and who wrote it, each tag and who gave it, who gave a star, who archived
    the run (None: nobody)."""

    note: str = ""
    note_by: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)
    stars: frozenset[str] = frozenset()
    archived_by: str | None = None


NONE: Final = RunAnnotations()


def by_run(rows: Iterable[AnnotationRow]) -> dict[str, RunAnnotations]:
    """The annotations of each run that has any; tags by name."""
    of_run: dict[str, list[AnnotationRow]] = {}
    for row in rows:
        if not row.removed:
            of_run.setdefault(row.run_id, []).append(row)
    return {run_id: _joined(found) for run_id, found in of_run.items()}


def _joined(rows: Iterable[AnnotationRow]) -> RunAnnotations:
    found: dict[str, dict[str, AnnotationRow]] = {}
    for row in rows:
        found.setdefault(row.kind, {})[row.label] = row
    note, archived = found.get("note", {}).get(""), found.get("archive", {}).get("")
    return RunAnnotations(
        note.value if note else "",
        note.person if note else "",
        {label: row.person for label, row in sorted(found.get("tag", {}).items())},
        frozenset(found.get("star", {})),
        archived.person if archived else None,
    )


def note_of(text: str) -> str:
    """The note as it is kept. Raises AnnotationError."""
    if len(text := printable(text).strip()) > MAX_NOTE:
        raise AnnotationError(f"The note has {len(text)} characters: shorten it to {MAX_NOTE}.")
    return text


def tag_of(text: str, existing: Iterable[str] = ()) -> str:
    """The tag as it is kept, for a run that has `existing` ones. Raises AnnotationError."""
    tag = " ".join(printable(text).split())
    if not tag or len(tag) > MAX_TAG:
        raise AnnotationError(f"A tag must have 1 to {MAX_TAG} characters; this one has {len(tag)}.")
    if len({*existing, tag}) > MAX_TAGS:
        raise AnnotationError(f"A run has at most {MAX_TAGS} tags: remove one first.")
    return tag
