"""The groups of a step as they are recorded: what the rollout says of each, joined with what the trainer decided.

Only figures are kept until the step ends; the tokens of a few groups come out of the data queue. pyarrow is imported
when the first step is written.
"""

import io
import json
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

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
from dapo_trainer.groups.dynamic_sampling import GroupOutcome, Kind
from dapo_trainer.rewards.verdict import Verdict

CHECK_CHARACTERS: Final = 4_000
# Answered and not decided on: what is in flight and carried. Far more than that is a leak.
MAX_WAITING: Final = 1 << 17


@dataclass(frozen=True)
class ScoredResponse:
    """What is known of a response besides its tokens; `counted`: it is among those of the group's outcome."""

    reward: float
    correct: bool
    truncated: bool
    check: str
    counted: bool = True


@dataclass(frozen=True)
class ScoredGroup:
    """What the rollout knows of a group, its responses in the order of their numbers."""

    uid: str
    source: str
    prompt: str
    ground_truth: str
    responses: tuple[ScoredResponse, ...]
    submitted_at: float
    finished_at: float


def check_text(verdict: Verdict) -> str:
    """What a check saw and found, as JSON; without the details if these are too long."""
    found: dict[str, Any] = {"score": verdict.score, "predicted": verdict.predicted}
    if verdict.failure is not None:
        found["failure"] = verdict.failure
    text = json.dumps({**found, **verdict.details}, default=str)
    return text if len(text) <= CHECK_CHARACTERS else json.dumps(found)[:CHECK_CHARACTERS]


class GroupRecords:
    """Filled by the agent loop's thread and by the buffer, emptied at the end of each step."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._scored: dict[str, ScoredGroup] = {}
        self._decided: dict[str, tuple[RecordedGroup, tuple[str, ...]]] = {}  # with their keys in the queue

    def scored(self, group: ScoredGroup) -> None:
        """All responses of a training group have been scored."""
        with self._lock:
            if len(self._scored) < MAX_WAITING:
                self._scored[group.uid] = group

    def of(self, uid: str) -> ScoredGroup | None:
        """What the rollout said of a group of this step or a later one; None for one of an earlier attempt."""
        with self._lock:
            return self._scored.get(uid)

    def decided(self, outcomes: Sequence[GroupOutcome], fate: Fate | None = None) -> None:
        """These groups are trained on, or gone; without a fate, because they are not worth training on."""
        now = time.time()
        with self._lock:
            for outcome in outcomes:
                scored = self._scored.get(outcome.uid)
                if len(self._decided) >= MAX_GROUPS:
                    self._scored.pop(outcome.uid, None)
                    continue
                group = _recorded(outcome, scored, fate or rejection(outcome), now)
                self._decided[outcome.uid] = group, outcome.keys

    def end_step(self, advantages: Mapping[str, float], recorded: Sequence[str]) -> list[RecordedGroup]:
        """The groups that were decided on since the last call. `advantages`: by key of the trainer's queue. `recorded`:
        the groups of which tokens are recorded."""
        with self._lock:
            decided, self._decided = self._decided, {}
            for uid in decided:
                self._scored.pop(uid, None)
        tokens = set(recorded)
        return [
            replace(
                group,
                advantages=[advantages[key] for key in keys if key in advantages],
                tokens_recorded=group.uid in tokens,
            )
            for group, keys in decided.values()
        ]


def rejection(outcome: GroupOutcome) -> Fate:
    """Why a group is not worth training on."""
    kinds = {Kind.LOST: Fate.LOST, Kind.ALL_RIGHT: Fate.ALL_RIGHT, Kind.ALL_WRONG: Fate.ALL_WRONG}
    return kinds.get(outcome.kind, Fate.SAME_SCORE)


def _recorded(outcome: GroupOutcome, scored: ScoredGroup | None, fate: Fate, now: float) -> RecordedGroup:
    counted = [] if scored is None else [response.correct for response in scored.responses if response.counted]
    # Of a group that a checkpoint restored only the number is known; which of its responses they were is not.
    correct = counted or [number < outcome.correct for number in range(len(outcome.rewards))]
    return RecordedGroup(
        uid=outcome.uid,
        prompt_id="" if scored is None else prompt_id(scored.source, scored.prompt),
        source="" if scored is None else scored.source,
        prompt="" if scored is None else scored.prompt[:PROMPT_CHARACTERS],
        ground_truth="" if scored is None else scored.ground_truth[:PROMPT_CHARACTERS],
        fate=str(fate),
        rewards=outcome.rewards,
        lengths=outcome.lengths,
        correct=correct,
        advantages=(),
        submitted_at=0.0 if scored is None else scored.submitted_at,
        finished_at=0.0 if scored is None else scored.finished_at,
        decided_at=now,
        tokens_recorded=False,
    )


def groups_parquet(groups: Sequence[RecordedGroup]) -> bytes:
    """A row for each group."""
    return _parquet(groups, GROUP_COLUMNS, len(groups) or 1)


def responses_parquet(responses: Sequence[RecordedResponse]) -> bytes:
    """A row for each response, each in a row group of its own: a page that shows one reads one."""
    return _parquet(responses, RESPONSE_COLUMNS, 1)


def _parquet(rows: Sequence[Any], columns: Mapping[str, str], together: int) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    def arrow(kind: str) -> Any:
        return pa.list_(pa.type_for_alias(kind[1:-1])) if kind.startswith("[") else pa.type_for_alias(kind)

    arrays = {
        name: pa.array([_bounded(getattr(row, name)) for row in rows], arrow(kind)) for name, kind in columns.items()
    }
    sink = io.BytesIO()
    pq.write_table(pa.table(arrays), sink, row_group_size=together, compression="zstd")
    return sink.getvalue()


def _bounded(value: Any) -> Any:
    return value[:MAX_CHARACTERS] if isinstance(value, str) else value
