"""Names, exit codes, last words and status."""

import re
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dapo_core import errors, naming
from dapo_core.run import last_words
from dapo_core.run.formatting import printable
from dapo_core.run.last_words import LastWords
from dapo_core.run.reasons import OF_ERROR, ExitCode
from dapo_core.run.status import Condition, DAPOJobStatus, Progress

MOMENT = datetime(2026, 11, 21, 4, 12, tzinfo=UTC)


def test_run_ids_are_readable_and_differ() -> None:
    assert re.fullmatch(r"arithmetic-20261121-0412-[2-9a-z]{4}", naming.new_run_id("arithmetic", MOMENT))
    assert len({naming.new_run_id("a", MOMENT) for _ in range(50)}) > 45


def test_the_longest_names_fit() -> None:
    longest = "a" * naming.MAX_JOB_NAME
    children = [naming.child_name(longest, role, naming.MAX_ATTEMPT, naming.MAX_INDEX) for role in naming.ROLES]
    assert max(map(len, children)) <= naming.MAX_LABEL
    assert len(naming.new_run_id(longest, MOMENT)) == naming.MAX_LABEL
    labels = naming.child_labels(longest, naming.new_run_id(longest, MOMENT), "rollout", 1, 0)
    assert all(len(value) <= naming.MAX_LABEL for value in labels.values())


@given(st.integers(0, 9_999_999))
def test_step_folders_are_read_back(step: int) -> None:
    assert naming.parse_step_folder(naming.step_folder(step)) == step


@given(st.integers(0, 9_999_999), st.integers(0, 9_999))
def test_checkpoint_folders_are_read_back(step: int, attempt: int) -> None:
    assert naming.parse_checkpoint_folder(naming.checkpoint_folder(step, attempt)) == (step, attempt)


@pytest.mark.parametrize("name", ["step-12", "step-", "000123", "step-00012x", ""])
def test_other_folders_are_no_steps(name: str) -> None:
    assert naming.parse_step_folder(name) is None


def test_object_keys() -> None:
    assert naming.manifest_key("run", 123, 2) == "run/checkpoints/step-000123-attempt-2/manifest.json"
    assert naming.manifest_key("run", 123, naming.NO_ATTEMPT) == "run/checkpoints/step-000123/manifest.json"
    assert naming.samples_key("run", 5, 2) == "run/samples/step-000005-attempt-2.parquet"


def test_errors_end_processes_with_the_designs_codes() -> None:
    mistakes = (errors.SpecError, errors.DataError, errors.ModelError)
    codes = [OF_ERROR[error].code for error in mistakes]
    assert codes == [ExitCode.SPEC, ExitCode.DATA, ExitCode.MODEL] == [10, 11, 12]
    assert OF_ERROR[errors.CheckpointError].code == ExitCode.STORES and int(ExitCode.STORES) == 31
    assert all(error.user_mistake for error in mistakes) and not errors.StoreError.user_mistake


def test_error_tree_is_the_one_drawn() -> None:
    drawn = {word for word in (errors.__doc__ or "").split() if word.endswith("Error")}
    assert drawn == {name for name, value in vars(errors).items() if isinstance(value, type) and name.endswith("Error")}


@given(st.builds(LastWords, st.just("Guard"), st.text(max_size=9000), st.one_of(st.none(), st.integers(0, 10**6))))
def test_last_words_fit_and_are_read_back(tmp_path_factory: pytest.TempPathFactory, words: LastWords) -> None:
    path = tmp_path_factory.getbasetemp() / "termination-log"
    words.write(path)
    assert path.stat().st_size <= last_words.MAX_BYTES
    found = last_words.read(path)
    assert found is not None and (found.reason, found.step) == (words.reason, words.step)
    message = printable(words.message)
    assert message.startswith(found.message)
    assert found.message == message or path.stat().st_size > last_words.MAX_BYTES - 12


@pytest.mark.parametrize(
    "content",
    [
        None,
        b"",
        b"{",
        b"[]",
        b'{"message": 1}',
        b"\xff",
        b'{"reason":"a","step":"x"}',
        b'{"reason":"a","step":1e999}',
        b"[" * 4000,
    ],
)
def test_unreadable_last_words_are_none(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "log").write_bytes(content)
    assert last_words.read(tmp_path / "log") is None


def test_last_words_go_where_the_environment_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAPO_TERMINATION_LOG", str(tmp_path / "log"))
    LastWords("Stalled", "no step for 60 s", 7).write()
    assert last_words.read() == LastWords("Stalled", "no step for 60 s", 7)
    monkeypatch.delenv("DAPO_TERMINATION_LOG")
    assert last_words.default_path() == last_words.DEFAULT_PATH


def test_a_place_that_can_not_be_written_does_not_keep_a_process_from_ending(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DAPO_TERMINATION_LOG", str(tmp_path / "absent" / "log"))
    LastWords("Completed", "All steps are done.").leave()
    assert "Cannot write the last words" in capsys.readouterr().err


def test_status_reads_what_it_writes_and_newer_fields() -> None:
    condition = Condition(
        type="Training", status="True", reason="Training", last_transition_time="2026-11-21T04:12:00Z"
    )
    status = DAPOJobStatus(conditions=[condition], progress=Progress(step=3, eta="2m"), dashboard_url="https://d")
    written = status.model_dump(by_alias=True, exclude_none=True)
    assert written["dashboardURL"] == "https://d" and written["progress"] == {"step": 3, "eta": "2m"}
    assert DAPOJobStatus.model_validate({**written, "fromTheFuture": 1}) == status
