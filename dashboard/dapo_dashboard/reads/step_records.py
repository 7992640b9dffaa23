"""What was recorded of one step: its groups, and the responses of a few of them token by token.

The objects lie beside the step's samples, under keys that follow from run, step and attempt; a file is read once and
kept as it is, and of its responses only the one that is looked at is unpacked."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from dapo_core.db import AttemptRow
from dapo_core.errors import StoreError
from dapo_core.naming import groups_key, tokens_key
from dapo_core.objectstore import ObjectNotFoundError, open_store
from dapo_core.run.recording import MAX_GROUPS, RESPONSE_COLUMNS, RecordedGroup, RecordedResponse
from dapo_dashboard.reads.bounded_parquet import MAX_BYTES, Wanted
from dapo_dashboard.reads.cached_reader import NewestVersions
from dapo_dashboard.reads.parquet_rows import rows_of

# Of a step: the newest, each of which is a request.
MAX_ATTEMPTS: Final = 50
# More than a trainer records of a step.
MAX_RESPONSES: Final = 4_096
_FILES: Final[NewestVersions[bytes]] = NewestVersions(64, max_bytes=2 * MAX_BYTES)
_GROUPS: Final[NewestVersions[tuple[RecordedGroup, ...]]] = NewestVersions(64)
_HEADS: Final[NewestVersions[tuple[RecordedResponse, ...]]] = NewestVersions(20_000, max_bytes=MAX_BYTES)
HEAD: Final = [name for name, kind in RESPONSE_COLUMNS.items() if not kind.startswith("[")]


class Limits(NamedTuple):
    """Of a search: how many responses, and seconds after which no further step is read."""

    most: int = 100
    seconds: float = 0.2


USUAL_LIMITS: Final = Limits()


@dataclass(frozen=True)
class StepRecord:
    """The groups of a step, as the newest attempt that recorded it left them."""

    run_id: str
    step: int
    attempt: int
    groups: Sequence[RecordedGroup]

    def group(self, uid: str) -> RecordedGroup | None:
        """The group with this ID, if the step has it."""
        return next((group for group in self.groups if group.uid == uid), None)


def read_step(url: str, run_id: str, step: int, attempts: Sequence[AttemptRow]) -> StepRecord | None:
    """What was recorded of the step; None if nothing was, or not any more. Raises StoreError."""
    possible = sorted((row.attempt for row in attempts if (row.step_from or 0) < step), reverse=True)
    for attempt in possible[:MAX_ATTEMPTS]:
        key = groups_key(run_id, step, attempt)
        try:
            groups = _GROUPS.get((url, key), None, lambda key=key: _groups(url, key))  # type: ignore[misc]
        except ObjectNotFoundError:
            continue
        return StepRecord(run_id, step, attempt, groups)
    return None


def read_responses(url: str, record: StepRecord, uid: str) -> dict[int, RecordedResponse]:
    """The responses of a group without their tokens, by their place in the file. Raises StoreError."""
    key = tokens_key(record.run_id, record.step, record.attempt)
    heads = _HEADS.get((url, key), None, lambda: _heads(url, key))
    return {place: response for place, response in enumerate(heads) if response.uid == uid}


def read_tokens(url: str, record: StepRecord, place: int) -> RecordedResponse:
    """One response with its tokens. Raises StoreError."""
    key = tokens_key(record.run_id, record.step, record.attempt)
    rows = rows_of(_file(url, key), key, Wanted(1, row_group=place))
    if len(rows) != 1:
        raise StoreError(f"Cannot read the responses {key}: its part {place} has no response.")
    return _response(rows[0], key)


def _groups(url: str, key: str) -> tuple[RecordedGroup, ...]:
    rows = rows_of(open_store(url).get_bytes(key), key, Wanted(MAX_GROUPS))
    try:
        return tuple(RecordedGroup.of_row(row) for row in rows)
    except TypeError as error:
        raise StoreError(f"Cannot read the groups {key}: {error}.") from error


def _heads(url: str, key: str) -> tuple[RecordedResponse, ...]:
    rows = rows_of(_file(url, key), key, Wanted(MAX_RESPONSES, HEAD))
    empty: dict[str, list[Any]] = {name: [] for name in RESPONSE_COLUMNS if name not in HEAD}
    return tuple(_response(row | empty, key) for row in rows)


def _file(url: str, key: str) -> bytes:
    return _FILES.get((url, key), None, lambda: open_store(url).get_bytes(key))


def _response(row: Mapping[str, Any], key: str) -> RecordedResponse:
    try:
        return RecordedResponse.of_row(row)
    except TypeError as error:
        raise StoreError(f"Cannot read the responses {key}: {error}.") from error


@dataclass(frozen=True)
class FoundResponse:
    """A response that a search found, and where it is."""

    step: int
    response: RecordedResponse


def search_responses(
    url: str,
    run_id: str,
    steps: Sequence[tuple[int, int]],
    matches: Callable[[RecordedResponse], bool],
    limits: Limits = USUAL_LIMITS,
) -> tuple[list[FoundResponse], int]:
    """Recorded responses that match, of the last of `steps` (step and attempt) first, and how many steps were searched:
    as many as the limits allow. Raises StoreError."""
    found: list[FoundResponse] = []
    end = time.monotonic() + limits.seconds
    searched = 0
    for step, attempt in reversed(steps):
        if searched and (len(found) >= limits.most or time.monotonic() > end):
            break
        searched += 1
        key = tokens_key(run_id, step, attempt)
        try:
            heads = _HEADS.get((url, key), None, lambda key=key: _heads(url, key))  # type: ignore[misc]
        except ObjectNotFoundError:
            continue
        found += [FoundResponse(step, response) for response in heads if matches(response)]
    return found[: limits.most], searched
