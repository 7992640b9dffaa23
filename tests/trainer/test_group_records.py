"""Groups and tokens of a step: what is recorded of which, in columns that any reader understands."""

import io
from dataclasses import asdict, fields, replace

import pyarrow.parquet as pq
import pytest
from store_fakes import MemoryStore, Notebook

from dapo_core.errors import StoreError
from dapo_core.naming import groups_key, tokens_key
from dapo_core.objectstore import ObjectInfo
from dapo_core.run.recording import (
    GROUP_COLUMNS,
    MAX_CHARACTERS,
    MAX_GROUPS,
    PROMPT_CHARACTERS,
    RESPONSE_COLUMNS,
    Fate,
    RecordedGroup,
    RecordedResponse,
    prompt_id,
)
from dapo_trainer.checkpoints.stored_checkpoints import old_samples
from dapo_trainer.groups.dynamic_sampling import GroupOutcome
from dapo_trainer.groups.group_records import (
    CHECK_CHARACTERS,
    GroupRecords,
    ScoredGroup,
    ScoredResponse,
    check_text,
    groups_parquet,
    responses_parquet,
)
from dapo_trainer.groups.sample_log import SampleLog
from dapo_trainer.rewards.verdict import failed, right_or_wrong

RESPONSE = RecordedResponse(
    uid="p", number=0, prompt="2+2=", response="4 ✓", ground_truth="4", source="math", reward=1.0, advantage=0.5,
    correct=True, truncated=False, check='{"score": 1.0}', token_ids=[5, 9], pieces=["4", " ✓"],
    rollout_log_probs=[-0.5, -1.25], trainer_log_probs=[], weights=[], entropies=[], has_loss=[True, False],
    clipped=[0, -1],
)  # fmt: skip


def outcome(uid: str, rights: str = "+-", **more: object) -> GroupOutcome:
    """A group of which `+` are right; a lost one of no responses."""
    rewards = tuple(1.0 if right == "+" else -1.0 for right in rights)
    keys = tuple(f"{uid}_{number}_0" for number in range(len(rights)))
    known = GroupOutcome(uid, rights.count("+"), rewards, (3,) * len(rights), keys=keys)
    return replace(known, **more)  # type: ignore[arg-type]


def scored(uid: str, rights: str = "+-", prompt: str = "2+2=") -> ScoredGroup:
    responses = tuple(ScoredResponse(0.0, right == "+", False, "{}") for right in rights)
    return ScoredGroup(uid, "math", prompt, "4", responses, 10.0, 12.0)


def test_a_step_has_the_groups_that_it_decided_on_and_why() -> None:
    records = GroupRecords()
    for uid in ("kept", "same", "wrong", "right", "lost", "old", "many", "carried"):
        records.scored(scored(uid, "-+" if uid == "kept" else "+-"))
    records.decided([outcome("kept", "-+")], Fate.TRAINED)
    records.decided([outcome("same"), outcome("wrong", "--"), outcome("right", "++"), outcome("lost", "")])
    records.decided([outcome("old")], Fate.STALE)
    records.decided([outcome("many")], Fate.SURPLUS)
    found = {group.uid: group for group in records.end_step({"kept_0_0": -1.0, "kept_1_0": 1.0}, ["kept"])}
    assert {uid: group.fate for uid, group in found.items()} == {
        "kept": "trained", "same": "same_score", "wrong": "all_wrong", "right": "all_right", "lost": "lost",
        "old": "stale", "many": "surplus",
    }  # fmt: skip
    kept = found["kept"]
    assert (kept.correct, kept.advantages, kept.tokens_recorded) == ([False, True], [-1.0, 1.0], True)
    assert (kept.submitted_at, kept.finished_at) == (10.0, 12.0) and kept.decided_at > 12 and kept.solved == 0.5
    assert found["old"].advantages == [] and not found["old"].tokens_recorded
    assert kept.prompt_id == prompt_id("math", "2+2=") == found["same"].prompt_id
    assert records.of("carried") is not None and records.of("kept") is None
    assert records.end_step({}, []) == [], "a group belongs to one step"


def test_a_group_that_a_checkpoint_restored_has_what_its_outcome_says() -> None:
    records = GroupRecords()
    records.decided([outcome("p", "++-")], Fate.TRAINED)
    [group] = records.end_step({}, [])
    assert (group.prompt_id, group.correct, group.waited_seconds) == ("", [True, True, False], None)
    assert group.reason == "trained on" and replace(group, fate="new").reason == "new"


def test_groups_are_bounded() -> None:
    records = GroupRecords()
    records.scored(scored("0", prompt="x" * 10_000))
    records.scored(scored(str(MAX_GROUPS)))
    records.decided([outcome(str(number)) for number in range(MAX_GROUPS + 1)], Fate.TRAINED)
    assert records.of(str(MAX_GROUPS)) is None
    groups = records.end_step({}, [])
    assert len(groups) == MAX_GROUPS and len(groups[0].prompt) == PROMPT_CHARACTERS
    long = replace(RESPONSE, response="x" * 2 * MAX_CHARACTERS)
    [row] = pq.read_table(io.BytesIO(responses_parquet([long]))).to_pylist()
    assert len(row["response"]) == MAX_CHARACTERS


@pytest.mark.parametrize(
    ("verdict", "text"),
    [
        pytest.param(right_or_wrong(True, "4"), '{"score": 1.0, "predicted": "4"}', id="an answer"),
        pytest.param(failed("hung"), '{"score": -1.0, "predicted": null, "failure": "hung"}', id="a failed check"),
        pytest.param(
            replace(right_or_wrong(False, None), details={"length": "x" * CHECK_CHARACTERS}),
            '{"score": -1.0, "predicted": null}',
            id="details that are too long",
        ),
    ],
)
def test_what_a_check_found(verdict: object, text: str) -> None:
    assert check_text(verdict) == text  # type: ignore[arg-type]


def test_the_columns_are_the_fields() -> None:
    assert list(GROUP_COLUMNS) == [field.name for field in fields(RecordedGroup)]
    assert list(RESPONSE_COLUMNS) == [field.name for field in fields(RecordedResponse)]


def test_groups_and_tokens_come_back() -> None:
    store = MemoryStore()
    log = SampleLog(store, "r", 2, Notebook())
    records = GroupRecords()
    records.scored(scored("p"))
    records.decided([outcome("p")], Fate.TRAINED)
    groups = records.end_step({}, ["p"])
    log.write_groups(5, groups, lambda: [RESPONSE, replace(RESPONSE, number=1)])
    log.close()
    file = pq.ParquetFile(io.BytesIO(store.get_bytes(tokens_key("r", 5, 2))))
    assert file.num_row_groups == 2, "one response is read without the others"
    found = [RecordedResponse.of_row(row) for row in file.read().to_pylist()]
    assert found == [RESPONSE, replace(RESPONSE, number=1)]
    [row] = pq.read_table(io.BytesIO(store.get_bytes(groups_key("r", 5, 2)))).to_pylist()
    expected = {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(groups[0]).items()}
    assert asdict(RecordedGroup.of_row({**row, "new": 1})) == expected
    assert pq.read_table(io.BytesIO(groups_parquet([]))).num_rows == 0


def test_what_the_store_refuses_is_told_and_training_goes_on() -> None:
    def fault(operation: str, _key: str) -> None:
        if operation == "put":
            raise StoreError("The store is down.")

    notes = Notebook()
    log = SampleLog(MemoryStore(fault), "r", 1, notes)
    log.write_groups(5, [], lambda: [RESPONSE])
    log.close()
    assert notes.reasons() == ["SamplesFailed"] and log.failures == 1


def test_old_groups_are_swept_with_the_samples_of_their_step() -> None:
    keys = [
        f"r/samples/step-00000{step}-attempt-1{kind}.parquet" for step in (1, 2) for kind in ("", "-groups", "-tokens")
    ]
    [found] = old_samples("r", [ObjectInfo(key, 1, 1.0) for key in keys], 5.0)
    assert list(found.keys) == sorted(keys[:3])
