"""A step's batch in parts of whole groups, for what verl's driver computes over padded responses.

verl pads every response of the batch to the longest one, in several copies: 8,192 responses of which one has 20,480
tokens take 15 GiB on the head, whatever the others are. Groups do not depend on each other, so a part at a time does.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import isnan
from typing import Any, Final

import torch
import transfer_queue as tq
from omegaconf import DictConfig, OmegaConf
from tensordict import TensorDict
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1 import trainer_base
from verl.trainer.ppo.v1.trainer_base import PPOTrainer

from dapo_trainer.plan.memory import PART_TOKENS
from dapo_trainer.verl_adapter import ragged_rows

Metrics = dict[str, Any]
Compute = Callable[[KVBatchMeta, Metrics], KVBatchMeta]


def loss_tokens(batch: KVBatchMeta) -> int:
    """Tokens of a batch that have a loss: none of a response that the overlong filter masked, or of padding."""
    return sum(map(_loss_tokens, batch.tags))


def _loss_tokens(tag: Mapping[str, Any]) -> int:
    if tag.get("is_padding", False):
        return 0
    # A response that was restored with a checkpoint of an older version does not say.
    return int(tag.get("loss_tokens", tag["response_len"]))


def parts(batch: KVBatchMeta, most: int = PART_TOKENS) -> Iterator[KVBatchMeta]:
    """The rows of `batch` in parts of at most `most` padded tokens, or of one group.

    Rows without a loss are added to a part that has one: verl computes importance weights over tokens with a loss, and
    either all rows of a batch have weights or none.
    """
    made: list[list[int]] = []
    for rows in _whole_groups(batch, most):
        if made and not (_has_loss(batch, made[-1]) and _has_loss(batch, rows)):
            made[-1] += rows
        else:
            made.append(rows)
    return (_part(batch, rows) for rows in made)


def _whole_groups(batch: KVBatchMeta, most: int) -> Iterator[list[int]]:
    groups: dict[str, list[int]] = {}
    for row, key in enumerate(batch.keys):
        groups.setdefault(key.rsplit("_", 2)[0], []).append(row)
    taken: list[int] = []
    longest = 0
    for rows in groups.values():
        of_group = max(batch.tags[row]["response_len"] for row in rows)
        if taken and (len(taken) + len(rows)) * max(longest, of_group) > most:
            yield taken
            taken, longest = [], 0
        taken = taken + rows
        longest = max(longest, of_group)
    yield taken


def _has_loss(batch: KVBatchMeta, rows: list[int]) -> bool:
    return any(_loss_tokens(batch.tags[row]) for row in rows)


def _part(batch: KVBatchMeta, rows: list[int]) -> KVBatchMeta:
    return replace(batch, keys=[batch.keys[row] for row in rows], tags=[batch.tags[row] for row in rows])


def by_part(compute: Compute, batch: KVBatchMeta, metrics: Metrics) -> KVBatchMeta:
    """Call `compute`, which writes its result to the queue, for each part. Adds its metrics, as of the whole batch."""
    found: list[tuple[int, Metrics]] = []
    for part in parts(batch):
        of_part: Metrics = {}
        done = compute(part, of_part)
        found.append((loss_tokens(part), of_part))
    metrics |= combined(found)
    return replace(done, keys=batch.keys, tags=batch.tags)


def combined(found: Iterable[tuple[int, Metrics]]) -> Metrics:
    """Metrics of parts, each with its number of tokens with a loss, as those of the whole: extremes of extremes, and
    means by tokens of all others (of standard deviations and correlations too, which are those within a part)."""
    values: dict[str, list[tuple[int, float]]] = {}
    for weight, metrics in found:
        for name, value in metrics.items():
            values.setdefault(name, []).append((weight, float(value)))
    return {name: _whole(name, of_parts) for name, of_parts in values.items()}


def _whole(name: str, of_parts: list[tuple[int, float]]) -> float:
    known = [(weight, value) for weight, value in of_parts if weight and not isnan(value)]
    if len(known) < 2:
        return (known or of_parts)[0][1]
    for extreme in (max, min):
        if extreme.__name__ in name:
            return extreme(value for _, value in known)
    return sum(weight * value for weight, value in known) / sum(weight for weight, _ in known)


class _WholeBatch:
    """The workers that compute log-probs, asked for those of a part: computes all of the batch's at the first."""

    def __init__(self, workers: Any, batch: KVBatchMeta) -> None:
        self._workers, self._batch, self._done = workers, batch, False

    def compute_log_prob(self, part: KVBatchMeta) -> KVBatchMeta:
        if not self._done:
            self._batch.extra_info.update(part.extra_info)
            self._workers.compute_log_prob(self._batch)
            self._done = True
        return part


class InParts(PPOTrainer):
    """Mixed in behind a verl trainer, whose common base it stands before."""

    actor_rollout_wg: Any

    def _compute_old_log_prob(self, batch: KVBatchMeta, metrics: Metrics) -> KVBatchMeta:
        workers = self.actor_rollout_wg
        self.actor_rollout_wg = _WholeBatch(workers, batch)
        try:
            return by_part(super()._compute_old_log_prob, batch, metrics)
        finally:
            self.actor_rollout_wg = workers


# What verl reads of a step's batch for its metrics.
FOR_METRICS: Final = (
    "prompts", "responses", "response_mask", "values", "advantages", "returns", "rm_scores", "token_level_rewards",
    "num_turns",
)  # fmt: skip
_taken_out: list[TensorDict] = []  # of one batch at most


def reads_batch_again(config: DictConfig) -> bool:
    """Whether an override makes verl read more of a step's batch after it has saved the step's checkpoint."""
    rollout = config.actor_rollout_ref.rollout
    more = (config.trainer.get("rollout_data_dir"), rollout.get("moe_load_balance_metrics_interval"))
    return any(more) or bool(OmegaConf.select(config, "actor_rollout_ref.model.mtp.enable_rollout"))


def take_out(batch: KVBatchMeta) -> None:
    """Remove a batch that was trained on from the data queue, whose checkpoint it would fill to no use. What verl reads
    for the step's metrics is kept for it."""
    data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=list(FOR_METRICS))
    _note_advantages(batch.keys, data)
    _taken_out[:] = [_compacted(data)]
    # verl clears the batch's keys afterwards, of which there must be one.
    left, *taken = batch.keys
    batch.keys[:] = [left]
    if taken:
        tq.kv_clear(keys=taken, partition_id=batch.partition_id)


_read_for_metrics = trainer_base.get_metric_data_with_optional_routed_experts


def _compact(**arguments: Any) -> TensorDict:
    """What verl reads for a step's metrics, in a tenth of the memory."""
    if _taken_out:
        return _taken_out.pop()
    data = _read_for_metrics(**arguments)
    _note_advantages(arguments.get("keys", ()), data)
    return _compacted(data)


_advantages: dict[str, float] = {}  # of the step's responses


def _note_advantages(keys: Sequence[str], data: TensorDict) -> None:
    """verl reads them for the metrics of each step; reading them once more would cost as much again."""
    found = data.get("advantages", None)
    if found is not None and keys:
        # All tokens of a response have the same, or none where they are masked.
        _advantages.update((key, float(row[row.abs().argmax()])) for key, row in zip(keys, found.unbind(), strict=True))


def advantages() -> dict[str, float]:
    """The advantage of each response of the step that has just ended, by its key. Forgets them."""
    taken = dict(_advantages)
    _advantages.clear()
    return taken


def _compacted(data: TensorDict) -> TensorDict:
    """Of tokens verl takes the number, of rewards their sum in each response, of the mask which tokens count."""
    for name, dtype in (("prompts", torch.uint8), ("responses", torch.uint8), ("response_mask", torch.bool)):
        if name in data.keys():
            data[name] = data[name].to(dtype)
    for name in {"rm_scores", "token_level_rewards"} & set(data.keys()):
        sums = [row.sum().reshape(1) for row in data[name].unbind()]
        data[name] = torch.nested.as_nested_tensor(sums, layout=torch.jagged)
    return data


trainer_base.get_metric_data_with_optional_routed_experts = _compact
ragged_rows.install_in_driver()
