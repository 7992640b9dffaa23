"""How each prompt of a run was solved over its steps, out of the groups that its trainer recorded.

Each step's object is read once, in columns of numbers (`group_columns`)."""

import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Final

import numpy as np
import pandas as pd

from dapo_core.db import AttemptRow
from dapo_core.errors import StoreError
from dapo_core.naming import groups_key, samples_prefix
from dapo_core.objectstore import ObjectNotFoundError, ObjectStore, open_store
from dapo_core.run.recording import MAX_GROUPS
from dapo_dashboard.reads.bounded_parquet import Wanted
from dapo_dashboard.reads.cached_reader import KeyedSlots
from dapo_dashboard.reads.group_columns import COLUMNS, NO_GROUPS, GroupColumns, NumberedPrompts, Prompt
from dapo_dashboard.reads.parquet_rows import batches_of

# Objects of a run's samples, which are three for each step and attempt.
MAX_LISTED: Final = 300_000
# The newest steps of a run; a listing is as old as this at most, in seconds.
MAX_STEPS: Final = 4_000
LISTED_SECONDS: Final = 10.0
WAIT_SECONDS: Final = 0.2  # a page does not wait longer for steps that were not read yet
_READERS: Final = 4
_KEY: Final = re.compile(r"step-(\d{6,16})-attempt-(\d{1,9})-groups\.parquet")
SOLVED: Final = 0.5  # more than this share of the responses are right
Recorded = tuple[int, int]
"""Step and attempt."""


class PromptHistory:
    """The groups of a run, by prompt; one for all viewers. `update` before each use."""

    def __init__(self, url: str, run_id: str) -> None:
        self._url, self._run_id = url, run_id
        self._lock = threading.Lock()
        self._listed_at = 0.0
        self._listed: list[Recorded] = []
        self._valid: list[Recorded] = []
        self._reading: threading.Thread | None = None
        self._error: StoreError | None = None
        self._known = NumberedPrompts()
        self._read: dict[Recorded, GroupColumns] = {}
        self._table: tuple[Sequence[Recorded], pd.DataFrame] = [], _table({})
        self._summary: tuple[pd.DataFrame, pd.DataFrame] | None = None

    def update(self, attempts: Sequence[AttemptRow], wait_seconds: float = WAIT_SECONDS) -> None:
        """Read the steps that were recorded since the last call, the newest first; what is not read after
        `wait_seconds` is read in the background, and is there at a later call. Raises StoreError."""
        with self._lock:
            if time.monotonic() - self._listed_at > LISTED_SECONDS:
                self._listed = _recorded(open_store(self._url), self._run_id)
                self._listed_at = time.monotonic()
            self._valid = continued(self._listed, attempts)[-MAX_STEPS:]
            if self.missing and not self.is_reading and self._error is None:
                self._reading = threading.Thread(target=self._read_missing, name="dapo-prompts", daemon=True)
                self._reading.start()
            reading = self._reading
        if reading is not None:
            reading.join(wait_seconds)
        if (error := self._error) is not None:
            self._error = None  # said once; the next call reads again
            raise error
        self._join()

    @property
    def missing(self) -> int:
        """How many steps are not read yet."""
        return sum(each not in self._read for each in self._valid)

    @property
    def is_reading(self) -> bool:
        """Whether steps are being read in the background."""
        return self._reading is not None and self._reading.is_alive()

    def _read_missing(self) -> None:
        missing = [each for each in reversed(self._valid) if each not in self._read]
        try:
            store = open_store(self._url)
            with ThreadPoolExecutor(_READERS) as readers:
                for each, batches in zip(missing, readers.map(self._load(store), missing), strict=True):
                    self._read[each] = self._known.columns(groups_key(self._run_id, *each), batches)
        except StoreError as error:
            self._error = error

    def _join(self) -> None:
        """One table of what has been read."""
        with self._lock:
            read = [each for each in self._valid if each in self._read]
            for gone in self._read.keys() - set(self._valid):
                self._read.pop(gone, None)
            if self._table[0] != read:
                self._table = read, _table({each: self._read[each] for each in read})

    def _load(self, store: ObjectStore) -> Callable[[Recorded], list[Any]]:
        def load(recorded: Recorded) -> list[Any]:
            key = groups_key(self._run_id, *recorded)
            with suppress(ObjectNotFoundError):
                return batches_of(store.get_bytes(key), key, Wanted(MAX_GROUPS, COLUMNS))
            return []

        return load

    @property
    def recorded(self) -> Sequence[Recorded]:
        """The steps that were read, each with its attempt, in order."""
        return self._table[0]

    @property
    def sources(self) -> list[str]:
        """The data sources of the prompts, sorted."""
        return sorted({prompt.source for prompt in self._known.prompts})

    def prompt(self, prompt_id: str) -> Prompt | None:
        """The prompt with this ID, if any step had it."""
        number = self._known.numbers.get(prompt_id)
        return None if number is None else self._known.prompts[number]

    def visits(self, prompt_id: str) -> pd.DataFrame:
        """The prompt's groups, a row for each: step, share of right responses, fate, recorded."""
        table = self._table[1]
        return table[table["prompt"] == self._known.numbers.get(prompt_id, -1)]

    def summary(self) -> pd.DataFrame:
        """A row for each prompt: prompt_id, source, text, seen, first, last, best (shares), flips, last_step.

        A flip is from solved to unsolved or back, between two groups that follow each other."""
        table = self._table[1]
        if self._summary is None or self._summary[0] is not table:
            self._summary = table, self._summed(table)
        return self._summary[1]

    def _summed(self, table: pd.DataFrame) -> pd.DataFrame:
        ordered = table.sort_values(["prompt", "step"], kind="stable")
        solved = ordered["share"] > SOLVED
        same = ordered["prompt"].eq(ordered["prompt"].shift())
        grouped = ordered.assign(flip=same & solved.ne(solved.shift())).groupby("prompt")
        found = grouped.agg(
            seen=("step", "size"), first=("share", "first"), last=("share", "last"), best=("share", "max"),
            flips=("flip", "sum"), last_step=("step", "last"),
        )  # fmt: skip
        prompts = [self._known.prompts[number] for number in found.index]
        return found.assign(
            prompt_id=[each.prompt_id for each in prompts],
            source=[each.source for each in prompts],
            text=[each.text for each in prompts],
        ).reset_index(drop=True)


def _table(read: Mapping[Recorded, GroupColumns]) -> pd.DataFrame:
    """A row for each group: step, prompt, share, fate, recorded."""
    parts = [NO_GROUPS, *read.values()]
    columns = {name: np.concatenate([getattr(part, name) for part in parts]) for name in GroupColumns._fields}
    steps = np.array([step for step, _ in read], np.int64)
    return pd.DataFrame({"step": np.repeat(steps, [len(part.prompt) for part in read.values()]), **columns})


_HISTORIES: Final[KeyedSlots[PromptHistory]] = KeyedSlots(8)


def prompt_history(url: str, run_id: str, attempts: Sequence[AttemptRow]) -> PromptHistory:
    """The run's prompts up to its last recorded step. Raises StoreError."""
    slot = _HISTORIES.slot((url, run_id))
    with slot.lock:
        if slot.value is None:
            slot.value = PromptHistory(url, run_id)
        history = slot.value
    history.update(attempts)
    return history


def continued(recorded: Iterable[Recorded], attempts: Sequence[AttemptRow]) -> list[Recorded]:
    """What the run went on from, by step: of an attempt not the steps that a later one did not resume from. Pure."""
    resumed = {row.attempt: row.step_from or 0 for row in attempts}
    kept: dict[int, int] = {}
    for step, attempt in recorded:
        repeated = any(number > attempt and start < step for number, start in resumed.items())
        if not repeated and attempt >= kept.get(step, 0):
            kept[step] = attempt
    return sorted(kept.items())


def _recorded(store: ObjectStore, run_id: str) -> list[Recorded]:
    """Raises StoreError."""
    prefix, recorded = samples_prefix(run_id), list[Recorded]()
    for count, info in enumerate(store.list(prefix)):
        if count >= MAX_LISTED:
            raise StoreError(f"{prefix} has more than {MAX_LISTED:,} objects, too many for a history of prompts.")
        if found := _KEY.fullmatch(info.key.removeprefix(prefix)):
            recorded.append((int(found[1]), int(found[2])))
    return recorded
