"""What people say of runs: kept with who said it, taken back, and bounded."""

import pytest
from metadata_databases import metadata_url, reader, writer

from dapo_core.db import MetadataReader, MetadataWriter, RunRow
from dapo_core.run.annotations import (
    MAX_NOTE,
    MAX_TAG,
    MAX_TAGS,
    AnnotationError,
    AnnotationRow,
    RunAnnotations,
    by_run,
    note_of,
    tag_of,
)

__all__ = ["metadata_url", "reader", "writer"]


def test_what_is_said_of_a_run_is_kept_with_who_said_it(writer: MetadataWriter, reader: MetadataReader) -> None:
    writer.annotate(
        [AnnotationRow("r", "note", "", "Diverged.", "ada", 1.0), AnnotationRow("r", "tag", "b", "", "ada", 1.0)]
    )
    writer.annotate([AnnotationRow("r", "tag", "a", "", "bob", 2.0), AnnotationRow("r", "star", "bob", "", "bob", 2.0)])
    writer.annotate([AnnotationRow("s", "archive", "", "", "bob", 2.0)])
    assert by_run(reader.annotations()) == {
        "r": RunAnnotations("Diverged.", "ada", {"a": "bob", "b": "ada"}, frozenset({"bob"})),
        "s": RunAnnotations(archived_by="bob"),
    }


def test_what_is_taken_back_is_gone_and_an_older_word_does_not_win(
    writer: MetadataWriter, reader: MetadataReader
) -> None:
    said = AnnotationRow("r", "note", "", "New.", "bob", 5.0)
    writer.annotate([said])
    writer.annotate([AnnotationRow("r", "note", "", "Old.", "ada", 4.0)])
    assert reader.annotations() == [said]
    writer.annotate([AnnotationRow("r", "note", "", "", "ada", 6.0, removed=True)])
    assert reader.annotations() == [] and by_run([said, AnnotationRow("x", "tag", "t", "", "a", 1.0, True)]).keys() == {
        "r"
    }


@pytest.mark.parametrize(
    ("text", "existing", "kept"),
    [("  a  b\n", [], "a b"), ("a\x1b[0m", [], "a\ufffd[0m"), ("a", [str(n) for n in range(MAX_TAGS - 1)], "a")],
    ids=["blanks", "escapes", "the last one"],
)
def test_tags(text: str, existing: list[str], kept: str) -> None:
    assert tag_of(text, existing) == kept


@pytest.mark.parametrize(
    ("text", "existing", "words"),
    [
        (" ", [], "1 to 60 characters; this one has 0"),
        ("x" * (MAX_TAG + 1), [], "has 61"),
        ("a", [str(n) for n in range(MAX_TAGS)], "at most 20 tags"),
    ],
    ids=["empty", "too long", "too many"],
)
def test_tags_that_are_not_taken(text: str, existing: list[str], words: str) -> None:
    with pytest.raises(AnnotationError, match=words):
        tag_of(text, existing)


def test_a_note_has_a_limit() -> None:
    assert note_of(" x ") == "x"
    with pytest.raises(AnnotationError, match="shorten it to 10000"):
        note_of("x" * (MAX_NOTE + 1))


def test_e5_each_namespace_has_its_share_of_what_is_said(writer: MetadataWriter, reader: MetadataReader) -> None:
    """A viewer of one namespace may write very many long notes, and all viewers' pages read them."""
    for number in range(30):
        writer.create_run(RunRow(f"b{number}", "b", "team-b", created_at=1.0))
        writer.annotate([AnnotationRow(f"b{number}", "note", "", "x" * MAX_NOTE, "bob", 100.0 + number)])
    writer.create_run(RunRow("a", "a", "team-a", created_at=1.0))
    note = AnnotationRow("a", "note", "", "y" * MAX_NOTE, "ada", 1.0)
    writer.annotate([note])
    read = reader.annotations(limit=10, longest=50)
    assert len(read) == 10 and "a" in {row.run_id for row in read}
    assert {len(row.value) for row in read} == {50}
    assert reader.annotations(["a"]) == [note] and reader.annotations([]) == []
