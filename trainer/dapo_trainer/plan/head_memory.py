"""Main memory of the head pod: the data queue, what the driver computes over a batch, and the processes. Pure."""

from dataclasses import dataclass
from typing import Final

from dapo_core.jobspec import DAPOJobSpec
from dapo_core.quantity import GIB, amount
from dapo_trainer.verl_config.overrides import storage_units

# In the queue: tokens, ids, positions and two masks as 64-bit integers, reward and vLLM's log-prob as float32 ...
GENERATED_BYTES: Final = 5 * 8 + 2 * 4
# ... and what the trainer adds: two log-probs, two entropies, advantage and return.
TRAINED_BYTES: Final = 6 * 4
PROMPT_BYTES: Final = 3 * 8 + 2 * 4
# Tokens, padding included, of the part of a batch that is computed at a time: 800 of the paper's longest responses.
PART_TOKENS: Final = 1 << 24
# Measured by benchmarks/head_memory.py: for a token of such a part, and, for the metrics, of the whole batch when
# padded to its longest response.
PART_BYTES: Final = 80
PADDED_BYTES: Final = 29
# A wave of prompts is at most two batches; in Separated mode one batch is ahead of the one that is trained on.
BATCHES: Final = 2
DRIVER: Final = 1.1 * GIB
STORAGE_UNIT: Final = 0.75 * GIB


@dataclass(frozen=True)
class HeadMemory:
    """Bytes, with every prompt and response at its limit. `shared`: /dev/shm, which counts towards the pod's memory."""

    queue: float
    computing: float
    processes: float
    shared: float

    @property
    def total(self) -> float:
        return self.queue + self.computing + self.processes + self.shared


def head_memory(spec: DAPOJobSpec) -> HeadMemory:
    """What the head needs at most."""
    batch = spec.batch
    tokens, prompts = batch.responses * batch.max_response_tokens, batch.responses * spec.data.max_prompt_tokens
    ahead = spec.algorithm.dynamic_sampling.enabled or spec.topology.mode == "Separated"
    generated = (BATCHES if ahead else 1) * (tokens * GENERATED_BYTES + prompts * PROMPT_BYTES)
    return HeadMemory(
        queue=generated + tokens * TRAINED_BYTES,
        computing=max(min(tokens, PART_TOKENS) * PART_BYTES, tokens * PADDED_BYTES),
        processes=DRIVER + (storage_units(spec) + 1) * STORAGE_UNIT,
        shared=float(amount(spec.topology.head.resources.shm)),
    )
