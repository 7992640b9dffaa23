"""The groups of a step in columns of numbers: a history of thousands of steps is read and held without an object for
each group. Prompts are numbered over all steps of a run."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dapo_core.errors import StoreError
from dapo_core.run.recording import PROMPT_CHARACTERS

# Different prompts of a run.
MAX_PROMPTS: Final = 100_000
# Of all of them together, and of anything but a prompt: who writes them shares the memory with all viewers.
MAX_CHARACTERS: Final = 32 * 2**20
_NAME: Final = 256
SCHEMA: Final = pa.schema(
    {
        "prompt_id": pa.string(),
        "source": pa.string(),
        "prompt": pa.string(),
        "fate": pa.string(),
        "correct": pa.list_(pa.bool_()),
        "tokens_recorded": pa.bool_(),
    }
)
COLUMNS: Final[Sequence[str]] = SCHEMA.names


@dataclass(frozen=True)
class Prompt:
    """A prompt of the training data."""

    prompt_id: str
    source: str
    text: str


class GroupColumns(NamedTuple):
    """Of each group of a step: the number of its prompt, the share of right responses, what became of it, and whether
    its tokens are recorded."""

    prompt: NDArray[np.int32]
    share: NDArray[np.float32]
    fate: NDArray[np.object_]
    recorded: NDArray[np.bool_]


NO_GROUPS: Final = GroupColumns(
    np.empty(0, np.int32), np.empty(0, np.float32), np.empty(0, np.object_), np.empty(0, np.bool_)
)


@dataclass
class NumberedPrompts:
    """The prompts of a run by number, in the order in which they were read; one thread adds to them."""

    numbers: dict[str, int] = field(default_factory=dict)
    prompts: list[Prompt] = field(default_factory=list)
    fates: dict[str, str] = field(default_factory=dict)
    characters: int = 0

    def columns(self, key: str, batches: Sequence[Any]) -> GroupColumns:
        """The groups of a step that have a prompt and a response; `batches` are pyarrow's, with COLUMNS, out of the
        object `key`. Prompts beyond MAX_PROMPTS or MAX_CHARACTERS are left out. Raises StoreError for other columns."""
        if not batches:
            return NO_GROUPS
        try:
            table = pa.Table.from_batches(batches).select(COLUMNS)
            table = (table if table.schema.equals(SCHEMA) else table.cast(SCHEMA)).combine_chunks()
        except (KeyError, pa.ArrowException) as error:
            raise StoreError(f"Cannot read the groups {key}: {error}.") from error
        correct = table["correct"].combine_chunks()
        counts = pc.fill_null(pc.list_value_length(correct), 0).to_numpy()
        right = pc.fill_null(pc.list_flatten(correct), False).to_numpy(zero_copy_only=False)
        rights = np.bincount(pc.list_parent_indices(correct).to_numpy(), weights=right, minlength=len(counts))
        numbers = self._numbers(table, counts)
        kept = numbers >= 0
        said = (fate[:_NAME] for fate in table["fate"].fill_null("").to_pylist())
        fates = [self.fates.setdefault(fate, fate) for fate in said]
        recorded = table["tokens_recorded"].fill_null(False).to_numpy()
        share = rights[kept] / counts[kept]
        return GroupColumns(
            numbers[kept], share.astype(np.float32), np.array(fates, np.object_)[kept], recorded[kept].astype(np.bool_)
        )

    def _numbers(self, table: Any, counts: NDArray[np.int32]) -> NDArray[np.int32]:
        """The number of each row's prompt, -1 for a row that is left out."""
        ids = table["prompt_id"].to_pylist()
        found = np.full(len(ids), -1, np.int32)
        for row, prompt_id in enumerate(ids):
            if not prompt_id or not counts[row] or len(prompt_id) > _NAME:
                continue
            number = self.numbers.get(prompt_id, -1)
            if number < 0 and len(self.prompts) < MAX_PROMPTS and self.characters < MAX_CHARACTERS:
                source = (table["source"][row].as_py() or "")[:_NAME]
                text = (table["prompt"][row].as_py() or "")[:PROMPT_CHARACTERS]
                self.characters += len(source) + len(text)
                number = len(self.prompts)
                self.prompts.append(Prompt(prompt_id, source, text))
                self.numbers[prompt_id] = number
            found[row] = number
        return found
