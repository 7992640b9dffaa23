"""Validation by groups, the same in training and for `dapo evaluate`."""

import uuid
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from tensordict import TensorDict
from verl.utils import tensordict_utils as tu

from dapo_trainer.groups.evaluated import Evaluated
from dapo_trainer.verl_adapter.agent_loop import VALIDATION
from dapo_trainer.verl_adapter.group_buffer import WAKE_SECONDS
from dapo_trainer.verl_adapter.session import current

Told = Callable[[int, int], None]
"""Called with how many prompts are done, and how many there are."""


def validate(
    loader: Iterable[dict[str, Any]],
    generate: Callable[[TensorDict], None],
    step: int,
    told: Told = lambda _done, _of: None,
) -> list[Evaluated]:
    """All prompts of `loader` at once, judged; verl's own passes every response through the data queue."""
    session, expected, done = current(), 0, 0
    for rows in loader:
        rows["uid"] = np.array([str(uuid.uuid4()) for _ in range(len(rows["raw_prompt"]))], dtype=object)
        batch = tu.get_tensordict(rows)
        tu.assign_non_tensor_data(batch, "global_steps", step)
        tu.assign_non_tensor_data(batch, "validate", True)
        generate(batch)
        expected += len(rows["uid"])
    while done < expected:
        done += len(session.ledger.take(VALIDATION, WAKE_SECONDS))
        told(done, expected)
    evaluated, session.evaluated = session.evaluated, []
    return evaluated
