"""verl's V1 trainers with our hooks: colocated (synchronous) and separated (asynchronous).

The loop, loss, engines and weight updates are verl's. Added here are the number of prompts that a step submits,
metrics, validation by groups, phases in the heartbeat, and a stop that loses nothing.
"""

import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch
import transfer_queue as tq
from omegaconf import DictConfig, OmegaConf
from transfer_queue import KVBatchMeta
from verl.single_controller.ray import ResourcePoolManager
from verl.trainer.ppo.checkpoint_callback import CheckpointCallback
from verl.trainer.ppo.v1 import PPOTrainerSeparateAsync, PPOTrainerSync, register_trainer
from verl.workers.rollout.llm_server import LLMServerClient

from dapo_core.errors import StoppedError
from dapo_core.run import metrics
from dapo_core.run.metrics import STALE
from dapo_trainer.groups.dynamic_sampling import Kind, Tally
from dapo_trainer.groups.evaluated import validation_metrics
from dapo_trainer.groups.sample_log import choose
from dapo_trainer.verl_adapter.agent_loop import VALIDATION
from dapo_trainer.verl_adapter.batch_parts import (
    InParts,
    advantages,
    by_part,
    loss_tokens,
    parts,
    reads_batch_again,
    take_out,
)
from dapo_trainer.verl_adapter.checkpoint_parts import ALL, REST, load_next, load_weights
from dapo_trainer.verl_adapter.elastic_rollouts import ElasticRollouts
from dapo_trainer.verl_adapter.engine_watch import EngineWatch
from dapo_trainer.verl_adapter.group_buffer import TRAIN, GroupBuffer, NothingLeft
from dapo_trainer.verl_adapter.group_client import GroupClient
from dapo_trainer.verl_adapter.group_router import ServerName
from dapo_trainer.verl_adapter.session import current
from dapo_trainer.verl_adapter.validation import validate
from dapo_trainer.verl_config.overrides import BYPASS
from dapo_trainer.verl_config.placement import NODE_RESOURCE

# verl 0.9.1 passes flush=True to a logger call of this module, a TypeError when the level lets it through.
logging.getLogger("verl.trainer.ppo.v1.trainer_separate_async").setLevel(logging.WARNING)


TRAINER_NODE = NODE_RESOURCE["trainer"]


class _TrainerPools(ResourcePoolManager):
    """Places FSDP ranks on the trainer's pods. They are placed first and fill them, so engines go to other pods."""

    def create_resource_pool(self) -> None:
        super().create_resource_pool()
        for pool in self.resource_pool_dict.values():
            pool.accelerator_type = TRAINER_NODE


class _Hooks:
    """Mixed in before a verl trainer."""

    global_steps: int
    total_training_steps: int
    replay_buffer: GroupBuffer
    timing_raw: dict[str, float]
    config: Any
    resource_pool_manager: ResourcePoolManager
    _trained: KVBatchMeta | None = None  # the step's batch, while it is in the queue
    _ranks: Any = None

    def _phase(self, phase: str, detail: str = "") -> None:
        current().report.phase(phase, self.global_steps, self.total_training_steps, detail)

    # ---- prompts of a step -----------------------------------------------------------------------------------------

    def prepare_step(self) -> dict[str, float]:
        self._phase("generate")
        missing = self.replay_buffer.begin_step(self.global_steps, self.config.data.train_batch_size)
        if missing:
            self._add_prompts_to_generate(missing)  # type: ignore[attr-defined]
        return {}

    def step(self, metrics: dict[str, Any], timing_raw: dict[str, float]) -> KVBatchMeta:
        self._trained = None
        self._trained = super().step(metrics, timing_raw)  # type: ignore[misc]
        return self._trained

    def on_train_begin(self) -> None:
        self.replay_buffer.restore()
        super().on_train_begin()  # type: ignore[misc]

    # ---- phases ---------------------------------------------------------------------------------------------------

    def _init_resource_pool_mgr(self) -> None:
        super()._init_resource_pool_mgr()  # type: ignore[misc]
        if TRAINER_NODE in ray.cluster_resources():
            plain = self.resource_pool_manager
            self.resource_pool_manager = _TrainerPools(plain.resource_pool_spec, plain.mapping)

    def _setup(self) -> None:
        current().report.phase("start", 0, 0, "starting trainer and rollout engines")
        super()._setup()  # type: ignore[misc]

    @property
    def actor_rollout_wg(self) -> Any:
        return self._ranks

    @actor_rollout_wg.setter
    def actor_rollout_wg(self, group: Any) -> None:
        """verl sets it when the ranks run, minutes before it loads a checkpoint; `batch_parts` replaces it for a
        while."""
        begun, self._ranks = self._ranks is None, group
        if begun:
            current().on_ranks(group.workers)

    def _load_checkpoint(self) -> None:
        resumed = current().resume(partial(load_weights, self.config, self._ranks))
        if resumed is not None:
            self.config.trainer.resume_mode = "resume_path"
            self.config.trainer.resume_from_path = str(resumed.folder)
            load_next(self._ranks, REST if resumed.has_weights else ALL)
        super()._load_checkpoint()  # type: ignore[misc]
        if resumed is not None:
            self.replay_buffer.recall(resumed.folder)

    def _compute_old_log_prob(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        self.replay_buffer.stop_if_asked()
        self._phase("score")
        batch = super()._compute_old_log_prob(batch, metrics)  # type: ignore[misc]
        _describe_policy(batch, metrics, of_rollout=bool(OmegaConf.select(self.config, BYPASS)))
        return batch

    def _compute_advantage(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        compute = super()._compute_advantage  # type: ignore[misc]

        def of_part(part: KVBatchMeta, of_part_metrics: dict[str, Any]) -> KVBatchMeta:
            algorithm, counted = self.config.algorithm, loss_tokens(part)
            with nullcontext() if counted else _uncorrected(algorithm):
                result: KVBatchMeta = compute(part, of_part_metrics)
            if counted and algorithm.rollout_correction.get("rollout_rs"):
                _leave_out_rejected(part)
            return result

        return by_part(of_part, batch, metrics)

    def _update_actor(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        self.replay_buffer.commit()
        self._phase("update")
        tokens = self.replay_buffer.tokens
        tokens.before_update(batch, current().records)
        result: KVBatchMeta = super()._update_actor(batch, metrics)  # type: ignore[misc]
        tokens.after_update(self.actor_rollout_wg)
        return result

    def on_step_end(self) -> None:
        self._phase("sync")
        super().on_step_end()  # type: ignore[misc]

    def _save_checkpoint(self) -> None:
        self._phase("checkpoint")
        if self._trained is not None and not reads_batch_again(self.config):
            take_out(self._trained)
        super()._save_checkpoint()  # type: ignore[misc]

    # ---- validation -----------------------------------------------------------------------------------------------

    def _validate(self) -> dict[str, float]:
        self._phase("validate")
        evaluated = validate(
            self.val_dataloader,  # type: ignore[attr-defined]
            self.agent_loop_manager.generate_sequences,  # type: ignore[attr-defined]
            self.global_steps,
        )
        metrics = dict(validation_metrics(evaluated))
        if not self._in_step:
            self._record(metrics)
        return metrics

    # ---- end of a step ---------------------------------------------------------------------------------------------

    def _compute_metrics(
        self, batch: KVBatchMeta, metrics: dict[str, Any], timing_raw: dict[str, float], global_steps: int, epoch: int
    ) -> None:
        super()._compute_metrics(batch, metrics, timing_raw, global_steps=global_steps, epoch=epoch)  # type: ignore[misc]
        metrics |= _sampling_metrics(
            self.replay_buffer.tally, self.replay_buffer.carried, self.replay_buffer.filters_by_spread
        )
        metrics |= _trained_metrics(batch) | self._engine_metrics()
        values = self._record(metrics)
        self._record_groups()
        current().recorded(global_steps, values)
        if current().stop.is_set():
            raise StoppedError

    def _record_groups(self) -> None:
        tokens = self.replay_buffer.tokens.take()
        groups = current().records.end_step(advantages(), tokens.uids)
        if tokens.every:
            tokens.own_log_probs = not OmegaConf.select(self.config, BYPASS)
            decode = partial(self.tokenizer.batch_decode, skip_special_tokens=False)  # type: ignore[attr-defined]
            current().report.groups(self.global_steps, groups, lambda: tokens.responses(decode))

    def _engine_metrics(self) -> dict[str, float]:
        return {}

    @property
    def _in_step(self) -> bool:
        return bool(getattr(self, "timing_raw", None))

    def _record(self, metrics: dict[str, Any]) -> dict[str, float]:
        """Report the numbers among `metrics` as those of this step. Returns them."""
        report, session, values = current().report, current(), _scalars(metrics)
        report.step(self.global_steps, values)
        logged, session.samples = session.samples, []
        if logged:
            validation = [sample for partition, sample in logged if partition == VALIDATION]
            training = [sample for partition, sample in logged if partition != VALIDATION]
            report.samples(self.global_steps, choose(validation, training))
        return values


@register_trainer("dapo_colocated")
class Colocated(_Hooks, PPOTrainerSync, InParts):
    """Trainer and rollout take turns on the same accelerators."""

    def get_llm_client(self) -> LLMServerClient:
        return self.llm_server_manager.get_client(client_cls=GroupClient)

    def watch_engines(self) -> AbstractContextManager[None]:
        """An engine's death ends the block: it shares processes with the trainer."""
        servers: list[ServerName] = self.llm_server_manager.server_handles
        return EngineWatch(servers)

    def _compute_old_log_prob(self, batch: KVBatchMeta, metrics: dict[str, Any]) -> KVBatchMeta:
        batch = super()._compute_old_log_prob(batch, metrics)
        # An engine has the version of the step before.
        metrics[STALE] = _correct_stale(batch, newest_version=self.global_steps - 1)
        return batch


@register_trainer("dapo_separated")
class Separated(ElasticRollouts, _Hooks, PPOTrainerSeparateAsync, InParts):
    """Trainer and rollout in separate pools; generation is one batch ahead of training."""

    def _build_replay_buffer(self) -> GroupBuffer:
        # verl looks this key up by the trainer's registered name, and does not find it under ours.
        self.parameter_sync_step = self.config.trainer.v1.separate_async.parameter_sync_step
        buffer: GroupBuffer = super()._build_replay_buffer()
        return buffer

    def get_llm_client(self) -> LLMServerClient:
        # verl's word for: wait while there is no engine.
        return self.standalone_server_manager.get_client(client_cls=GroupClient, only_hybrid=True)

    def prepare_step(self) -> dict[str, float]:
        self._phase("generate")
        self.replay_buffer.begin_step(self.global_steps, self.config.data.train_batch_size)
        self._add_batch_to_generate()
        return {}

    def _step_once(self, metrics: dict[str, Any], timing_raw: dict[str, float], sample_batch_size: int) -> KVBatchMeta:
        """One mini-batch; an empty one when no group is left and the job allows a partial batch."""
        try:
            return super()._step_once(metrics, timing_raw, sample_batch_size)
        except NothingLeft:
            return KVBatchMeta(partition_id=TRAIN, keys=[], tags=[])


class RecordedCheckpoints(CheckpointCallback):
    """Loaded by verl as `trainer.checkpoint_callback_class`: a saved checkpoint waits until its step is on record.

    verl validates and computes a step's metrics after it saves. A checkpoint committed before that, followed by a
    crash, would resume past a step whose metrics were never written.
    """

    def on_save(self, trainer: Any, global_step: int, checkpoint_dir: str, **_: Any) -> None:
        trainer.replay_buffer.save(Path(checkpoint_dir))
        current().saved(global_step, Path(checkpoint_dir))


def _describe_policy(batch: KVBatchMeta, values: dict[str, Any], *, of_rollout: bool = False) -> None:
    """Add the mean probability of the sampled tokens under the policy before its update (the paper's figure 7), and
    the mean entropy per token: verl's own averages as the loss does, which is not per token where that sums.

    `of_rollout`: the old log-probs are those of the rollout, and no pass computed entropies. The mean
    negative log-prob of the sampled tokens estimates it.

    Where the overlong filter masked the whole batch, remove verl's NaNs, which would look like a broken policy and end
    the run.
    """
    tokens = loss_tokens(batch)
    if not tokens:
        for name in [name for name, value in values.items() if value != value]:
            del values[name]
        return
    probability = entropy = 0.0
    for part in parts(batch):
        fields = ["old_log_probs", "response_mask", *([] if of_rollout else ["entropy"])]
        data = tq.kv_batch_get(keys=part.keys, partition_id=part.partition_id, select_fields=fields)
        kept = data["response_mask"].values().bool()
        log_probs = data["old_log_probs"].values()[kept]
        probability += torch.exp(log_probs).sum().item()
        entropy += (-log_probs if of_rollout else data["entropy"].values()[kept]).sum().item()
    values[metrics.MEAN_PROBABILITY] = probability / tokens
    values[metrics.ENTROPY] = entropy / tokens


def _leave_out_rejected(batch: KVBatchMeta) -> None:
    """Count only the tokens with a loss: verl's rejection changes `response_mask`, and its engine divides by the sum of
    `loss_mask`, so that what is rejected would weaken the rest."""
    data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=["response_mask"])
    data["loss_mask"] = data.pop("response_mask")
    tq.kv_batch_put(keys=batch.keys, partition_id=batch.partition_id, fields=data)


def _correct_stale(batch: KVBatchMeta, newest_version: int) -> float:
    """Make the ratios of carried responses relative to the policy that sampled them. Returns the share of carried ones.

    verl takes the policy before the step's updates for the one that sampled: ratios of responses that are a step older
    would begin at 1, and nothing would account for the updates in between. This is its `bypass_mode`, for these alone.
    """
    tags = [tag for tag in batch.tags if not tag.get("is_padding", False)]
    stale = [
        key
        for key, tag in zip(batch.keys, batch.tags, strict=True)
        if not tag.get("is_padding", False) and tag["min_global_steps"] < newest_version
    ]
    if stale:
        data = tq.kv_batch_get(keys=stale, partition_id=batch.partition_id, select_fields=["rollout_log_probs"])
        data["old_log_probs"] = data.pop("rollout_log_probs")
        tq.kv_batch_put(keys=stale, partition_id=batch.partition_id, fields=data)
    return len(stale) / max(len(tags), 1)


@contextmanager
def _uncorrected(algorithm: DictConfig) -> Iterator[None]:
    """Without importance weights between rollout and trainer: verl refuses to compute them over no tokens."""
    correction = algorithm.rollout_correction
    algorithm.rollout_correction = None
    try:
        yield
    finally:
        algorithm.rollout_correction = correction


def _sampling_metrics(tally: Tally, carried: int, by_spread: bool) -> dict[str, float]:
    """A step with carried groups only generated none: its shares are missing then, not zero."""
    counts = {
        metrics.GROUPS_GENERATED: tally.generated,
        metrics.GROUPS_CARRIED: carried,
        metrics.GROUPS_DROPPED: tally.dropped,
        metrics.GROUPS_STALE: tally.stale,
        metrics.GROUPS_TRAINED: tally.trained,
        metrics.TOKENS_GENERATED: tally.tokens,
        metrics.GENERATION_BATCHES: tally.generated / max(tally.batch, 1),
        metrics.REWARD_FAILURES: tally.failures,
    }
    if tally.generated:
        counts |= {f"dapo/groups/{kind}": tally.groups[kind] / tally.generated for kind in Kind}
        if by_spread:
            counts[metrics.GROUPS_SPREAD] = 1 - tally.rejected / tally.generated
    if tally.responses:
        counts[metrics.ACCURACY_GENERATED] = tally.correct / tally.responses
        counts[metrics.LENGTH_GENERATED] = tally.tokens / tally.responses
        counts[metrics.TRUNCATED_GENERATED] = tally.truncated / (tally.responses + tally.failures)
        counts[metrics.REWARD_GENERATED] = tally.reward / tally.responses
        counts |= {metrics.reward_named(name): total / tally.responses for name, total in tally.terms.items()}
    if tally.tokens:
        counts[metrics.NLL_GENERATED] = tally.nll / tally.tokens
    return counts


def _trained_metrics(batch: KVBatchMeta) -> dict[str, float]:
    """Metrics of the responses trained on; verl's own clip_ratio compares with the longest one, not with the limit."""
    tags = [tag for tag in batch.tags if not tag.get("is_padding", False)]
    return {
        metrics.ACCURACY_TRAINED: float(np.mean([tag["correct"] for tag in tags])),
        metrics.TOKENS_TRAINED: float(sum(tag["response_len"] for tag in tags)),
        metrics.TRUNCATED: float(np.mean([tag["truncated"] for tag in tags])),
    }


def _scalars(metrics: dict[str, Any]) -> dict[str, float]:
    plain = {}
    for name, value in metrics.items():
        if isinstance(value, torch.Tensor | np.generic):
            value = value.item()
        if isinstance(value, int | float) and not isinstance(value, bool):
            plain[name] = float(value)
    return plain
