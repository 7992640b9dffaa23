"""What viewers say of runs: the buttons under the table of runs, and the note and tags on a run's page."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing

import streamlit as st

from dapo_core.db import RunRow, open_writer
from dapo_core.errors import DapoError
from dapo_core.run.annotations import (
    MAX_NOTE,
    MAX_TAG,
    NONE,
    AnnotationError,
    AnnotationKind,
    AnnotationRow,
    RunAnnotations,
    note_of,
    tag_of,
)
from dapo_dashboard import context
from dapo_dashboard.escaping import markdown
from dapo_dashboard.reads import run_list


def is_possible() -> bool:
    """Whether this server may write what viewers say."""
    return context.settings().acknowledge_url is not None


def buttons(run_ids: Sequence[str], said: Mapping[str, RunAnnotations]) -> None:
    """Star, archive or tag the ticked runs, all of which the viewer may see."""
    if not is_possible():
        return
    person = context.viewer().name
    all_starred = all(person in said.get(run_id, NONE).stars for run_id in run_ids)
    all_archived = all(said.get(run_id, NONE).archived_by for run_id in run_ids)
    if st.button("Unstar" if all_starred else "Star", icon=":material/star:"):
        _say([_row(run_id, "star", person, removed=all_starred) for run_id in run_ids])
    if st.button("Unarchive" if all_archived else "Archive", icon=":material/archive:"):
        _say([_row(run_id, "archive", removed=all_archived) for run_id in run_ids])
    with st.popover("Tag", icon=":material/sell:"), st.form("tag-runs", border=False, clear_on_submit=True):
        typed = st.text_input("Tag", max_chars=MAX_TAG, placeholder="baseline")
        if st.form_submit_button(f"Add to {len(run_ids)} runs" if len(run_ids) > 1 else "Add"):
            _try(lambda: [_row(one, "tag", tag_of(typed, said.get(one, NONE).tags)) for one in run_ids])


def of_run(run: RunRow) -> None:
    """The tags that people gave to a run, and a form that changes what they say of it."""
    said = run_list.read_annotations_of(context.reader(), run.run_id)
    for tag in said.tags:
        st.badge(markdown(tag, MAX_TAG), icon=":material/sell:", color="blue")
    if said.archived_by:
        st.badge(f"archived by {markdown(said.archived_by, 80)}", icon=":material/archive:", color="gray")
    if is_possible():
        _form(run.run_id, said)


def note(run: RunRow) -> None:
    """The note on a run and who wrote it; nothing where there is none."""
    said = run_list.read_annotations_of(context.reader(), run.run_id)
    if said.note:
        st.caption(f"{markdown(said.note, 2_000)} ({markdown(said.note_by, 80)})")


def _form(run_id: str, said: RunAnnotations) -> None:
    person = context.viewer().name
    with st.popover("Note and tags", icon=":material/edit_note:"), st.form(f"note-{run_id}", border=False):
        # Keyed by what is stored: another viewer's change shows in the form of who has not typed.
        note = st.text_area("Note", said.note, key=f"note {run_id} {hash(said.note)}", max_chars=MAX_NOTE)
        tags = st.multiselect(
            "Tags", list(said.tags), list(said.tags), key=f"tags {run_id} {hash(tuple(said.tags))}",
            accept_new_options=True, placeholder="type a new one",
        )  # fmt: skip
        star = st.toggle("Star", person in said.stars, key=f"star {run_id} {person in said.stars}")
        archived = st.toggle("Archived", bool(said.archived_by), key=f"archive {run_id} {said.archived_by}")
        if st.form_submit_button("Save", type="primary"):
            _try(lambda: _changes(run_id, said, note, tags, star, archived))


def _changes(
    run_id: str, said: RunAnnotations, note: str, tags: Sequence[str], star: bool, archived: bool
) -> list[AnnotationRow]:
    """Only what differs from what was said: what others said meanwhile stays. Raises AnnotationError."""
    person = context.viewer().name
    rows = []
    if (text := note_of(note)) != said.note:
        rows.append(_row(run_id, "note", value=text, removed=not text))
    gone = [tag for tag in said.tags if tag not in tags]
    left = [tag for tag in said.tags if tag in tags]
    for typed in tags:
        if typed not in said.tags:
            left.append(tag := tag_of(typed, left))
            rows.append(_row(run_id, "tag", tag))
    rows += [_row(run_id, "tag", tag, removed=True) for tag in gone]
    if star != (person in said.stars):
        rows.append(_row(run_id, "star", person, removed=not star))
    if archived != bool(said.archived_by):
        rows.append(_row(run_id, "archive", removed=not archived))
    return rows


def _row(
    run_id: str, kind: AnnotationKind, label: str = "", value: str = "", *, removed: bool = False
) -> AnnotationRow:
    return AnnotationRow(run_id, kind, label[:253], value, context.viewer().name[:253], time.time(), removed)


def _try(make: Callable[[], list[AnnotationRow]]) -> None:
    try:
        rows = make()
    except AnnotationError as error:
        st.error(markdown(error, 400), icon=":material/error:")
        return
    _say(rows)


def _say(rows: Sequence[AnnotationRow]) -> None:
    """Write them with the login that may do nothing else, and show the page with them."""
    url = context.settings().acknowledge_url
    if url is None or not rows:
        return
    try:
        with closing(open_writer(url)) as writer:
            writer.annotate(rows)
    except DapoError as error:
        st.error(f"Not saved. {markdown(error, 400)}", icon=":material/cloud_off:")
        return
    run_list.forget_annotations(context.reader(), [row.run_id for row in rows])
    st.rerun()  # of all: the filters have the new tags
