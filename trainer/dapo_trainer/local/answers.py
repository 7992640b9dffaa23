"""What the model answered to the same prompts at its first validation and at its last."""

from collections.abc import Sequence

from dapo_core.db import open_reader
from dapo_core.errors import StoreError
from dapo_core.objectstore import open_store
from dapo_core.run.samples import Sample
from dapo_trainer.local.summary import SAMPLES, Answer
from dapo_trainer.samples import read_samples

TRIES = 5


def answers(metadata_url: str, store_url: str, run_id: str) -> list[Answer]:
    """Pairs for the summary; none when the run logged fewer than two sets, or they can't be read."""
    try:
        rows = open_reader(metadata_url).samples(run_id)
        store = open_store(store_url)
        before = read_samples(store, rows[-1].key) if len(rows) > 1 else []
        # The newest samples may be of training prompts alone, which no other step has.
        found = (pairs(before, read_samples(store, row.key)) for row in rows[: min(TRIES, len(rows) - 1)])
        return next((answered for answered in found if answered), [])
    except (StoreError, ValueError, TypeError):
        return []  # of another version, or damaged: the run is none the worse


def pairs(before: Sequence[Sample], after: Sequence[Sample], count: int = SAMPLES) -> list[Answer]:
    """Up to `count` prompts that stand in both, spread over the set, each with its first answer of either side."""
    first = {sample.prompt: sample for sample in reversed(before)}
    last = {sample.prompt: sample for sample in reversed(after)}
    common = [prompt for prompt in dict.fromkeys(sample.prompt for sample in before) if prompt in last]
    chosen = [common[index * len(common) // count] for index in range(count)] if len(common) > count else common
    return [_answer(first[prompt], last[prompt]) for prompt in chosen]


def _answer(before: Sample, after: Sample) -> Answer:
    return Answer(
        prompt=before.prompt,
        before=before.response,
        before_right=before.is_right,
        after=after.response,
        after_right=after.is_right,
    )
