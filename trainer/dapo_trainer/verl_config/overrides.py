"""The verl keys that follow from a DAPOJob, as pure mappings: a function for each group, with every key spelled out.

They are those of verl 0.9.1's `trainer/config/*.yaml`; `tests/trainer/test_verl_contract.py` fails when one is gone.
"""

from math import ceil
from pathlib import Path
from typing import Any

from dapo_core.jobspec import DAPOJobSpec, Reward
from dapo_core.jobspec.inputs import ALL_LINEAR
from dapo_trainer.verl_config.kernels import attention
from dapo_trainer.verl_config.placement import Device, Paths, Placement

Overrides = dict[str, Any]

ADAPTER = "dapo_trainer.verl_adapter"
ROUTER = Path(__file__).parent.parent / "verl_adapter" / "group_router.yaml"
# Tokens of a forward and backward pass. More would not be faster on CPUs, where their logits are held all at once.
PASS_TOKENS: dict[Device, int] = {"cuda": 16_384, "cpu": 4_096}
# vLLM takes weights in parts of this size; on processors no tensor may be larger than a part.
CPU_BUCKET_MIB = 64
LAST_STEP_ONLY = 1_000_000_000
LOSS_AGGREGATION = {
    "TokenMean": "token-mean",
    "SequenceMean": "seq-mean-token-mean",
    "SequenceSum": "seq-mean-token-sum-norm",
}
# Registered by `verl_adapter.policy_loss`; Dr. GRPO is the clipped loss with another sum and plain advantages.
LOSS_MODE = {"dapo": "dapo", "drgrpo": "dapo", "gspo": "dapo_gspo", "cispo": "dapo_cispo", "sapo": "dapo_sapo"}
REJECTION_LEVEL = {
    "Token": "token",
    "SequenceMean": "seq_mean",
    "SequenceSum": "seq_sum",
    "SequenceMax": "seq_max",
}
# Whether the rollout's log-probs are taken for those of the policy before a step's updates.
BYPASS = "algorithm.rollout_correction.bypass_mode"
REJECTION_MEASURE = {"Ratio": "k1", "K2": "k2", "K3": "k3"}
FSDP_DTYPE = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}


def _data(spec: DAPOJobSpec, paths: Paths) -> Overrides:
    weighted: Overrides = {
        "data.custom_cls.path": f"pkg://{ADAPTER}.weighted_prompts",
        "data.custom_cls.name": "WeightedPrompts",
    }
    return (weighted if spec.data.weighted else {}) | {
        "data.train_files": list(paths.train),
        # verl opens a validation set even when it never validates: one row of the training data.
        "data.val_files": list(paths.validation or paths.train),
        "data.val_max_samples": -1 if paths.validation else 1,
        "data.train_batch_size": spec.batch.prompts,
        "data.max_prompt_length": spec.data.max_prompt_tokens,
        "data.max_response_length": spec.batch.max_response_tokens,
        "data.seed": spec.data.seed,
        "data.validation_shuffle": False,
        # The prompts are checked against the limit before verl starts, in one pass over the file.
        "data.filter_overlong_prompts": False,
        # A fork of the driver, which runs Ray's threads, can hang; a row is read in microseconds.
        "data.dataloader_num_workers": 0,
    }


def _model(spec: DAPOJobSpec, placement: Placement, paths: Paths) -> Overrides:
    model = spec.model
    keys: Overrides = {
        "actor_rollout_ref.model.path": paths.model,
        "actor_rollout_ref.model.enable_gradient_checkpointing": model.gradient_checkpointing,
        # Registers our policy loss, engine, attention and log-probs in every process that builds the model.
        "actor_rollout_ref.model.external_lib": f"{ADAPTER}.rank_extensions",
        "actor_rollout_ref.model.use_remove_padding": True,
        # verl's name for log-probs by chunks of tokens; the computation is ours (token_log_probs).
        "actor_rollout_ref.model.use_fused_kernels": placement.device == "cuda",
        "actor_rollout_ref.model.fused_kernel_options.impl_backend": "torch",
        **attention(placement.device, model.dtype),
    }
    if model.lora is not None:
        keys["actor_rollout_ref.model.lora_rank"] = model.lora.rank
        keys["actor_rollout_ref.model.lora_alpha"] = model.lora.alpha
        modules = list(model.lora.target_modules)
        # peft expands this word only where it is a text of its own.
        keys["actor_rollout_ref.model.target_modules"] = ALL_LINEAR if modules == [ALL_LINEAR] else modules
        # Engines get whole weights, in either mode: separate pools would never receive adapters from verl.
        keys["actor_rollout_ref.model.lora.merge"] = True
    return keys


def _algorithm(spec: DAPOJobSpec) -> Overrides:
    algorithm = spec.algorithm
    actor = "actor_rollout_ref.actor."
    # Those that the loss does not use have no value, and verl's stays.
    bounds = {
        f"{actor}clip_ratio_low": algorithm.clip_low,
        f"{actor}clip_ratio_high": algorithm.clip_high,
        f"{actor}clip_ratio_c": algorithm.dual_clip,
        f"{actor}tau_pos": algorithm.tau_positive,
        f"{actor}tau_neg": algorithm.tau_negative,
    }
    # Without it verl divides by the longest response of each micro-batch.
    if algorithm.loss_aggregation == "SequenceSum":
        bounds[f"{actor}loss_scale_factor"] = spec.batch.max_response_tokens
    return {key: value for key, value in bounds.items() if value is not None} | {
        "algorithm.adv_estimator": "grpo",
        "algorithm.norm_adv_by_std_in_grpo": algorithm.normalize_by_std,
        "algorithm.use_kl_in_reward": False,
        "algorithm.filter_groups.enable": algorithm.dynamic_sampling.enabled,
        "algorithm.filter_groups.metric": "acc",
        f"{actor}policy_loss.loss_mode": LOSS_MODE[algorithm.loss],
        f"{actor}loss_agg_mode": LOSS_AGGREGATION[algorithm.loss_aggregation],
        f"{actor}entropy_coeff": algorithm.entropy_coefficient,
        f"{actor}use_kl_loss": algorithm.kl_coefficient > 0,
        f"{actor}kl_loss_coef": algorithm.kl_coefficient,
    }


def _old_log_probs(spec: DAPOJobSpec) -> Overrides:
    return {BYPASS: True} if spec.algorithm.old_log_probs == "Rollout" else {}


def _importance(spec: DAPOJobSpec) -> Overrides:
    """Weights that correct for vLLM's probabilities differing from the trainer's; without them verl only measures."""
    correction, verl = spec.algorithm.importance_correction, "algorithm.rollout_correction."
    if correction is None:
        return {}
    return {
        f"{verl}rollout_is": correction.level.lower(),
        f"{verl}rollout_is_threshold": correction.cap,
        # The trainer computes the old policy's probabilities: the clip is relative to them, separate from the weights.
        BYPASS: False,
    }


def _rejection(spec: DAPOJobSpec) -> Overrides:
    """What is left out of the loss because trainer and rollout disagree on it."""
    rejection, verl = spec.algorithm.rollout_rejection, "algorithm.rollout_correction."
    if rejection is None:
        return {}
    threshold = f"{rejection.upper!r}"
    if rejection.measure == "Ratio":
        # verl bounds the inverse: the rollout's probability over the trainer's.
        lower = 1 / rejection.upper if rejection.lower is None else rejection.lower
        threshold = f"{1 / rejection.upper!r}_{1 / lower!r}"
    return {
        f"{verl}rollout_rs": f"{REJECTION_LEVEL[rejection.level]}_{REJECTION_MEASURE[rejection.measure]}",
        f"{verl}rollout_rs_threshold": threshold,
        BYPASS: False,
    }


def _optimizer(spec: DAPOJobSpec, placement: Placement) -> Overrides:
    optimizer, optim = spec.optimizer, "actor_rollout_ref.actor.optim."
    # verl's schedule advances with each call of the trainer: once per step, or in `Separated` mode once per update.
    calls = spec.batch.updates_per_step if spec.topology.mode == "Separated" else 1
    return {
        f"{optim}lr": optimizer.learning_rate,
        f"{optim}lr_warmup_steps": optimizer.warmup_steps * calls,
        f"{optim}weight_decay": optimizer.weight_decay,
        f"{optim}clip_grad": optimizer.gradient_clip,
        # On CPUs torch's default goes through the parameters in Python.
        **({f"{optim}override_optimizer_config": {"fused": True}} if placement.device == "cpu" else {}),
    }


def _trainer_engine(spec: DAPOJobSpec, placement: Placement) -> Overrides:
    actor = "actor_rollout_ref.actor."
    keys: Overrides = _fsdp(actor, spec, placement) | {
        f"{actor}ppo_mini_batch_size": spec.batch.mini_batch_prompts,
        f"{actor}data_loader_seed": spec.data.seed,
        "actor_rollout_ref.hybrid_engine": spec.topology.mode == "Colocated",
    }
    if spec.algorithm.kl_coefficient > 0:
        keys |= _fsdp("actor_rollout_ref.ref.", spec, placement)
    longest = spec.data.max_prompt_tokens + spec.batch.max_response_tokens
    return keys | {
        f"{actor}use_dynamic_bsz": True,
        # verl takes the same number for log-probs, of the reference model too.
        f"{actor}ppo_max_token_len_per_gpu": max(longest, PASS_TOKENS[placement.device]),
    }


def _fsdp(group: str, spec: DAPOJobSpec, placement: Placement) -> Overrides:
    """The FSDP engine of a model: `group` is verl's prefix for the actor or the reference model."""
    keys: Overrides = {
        f"{group}strategy": "fsdp2",
        f"{group}fsdp_config.mixed_precision.param_dtype": FSDP_DTYPE[spec.model.dtype],
        f"{group}fsdp_config.mixed_precision.reduce_dtype": "fp32",
        f"{group}fsdp_config.mixed_precision.buffer_dtype": "fp32",
        f"{group}fsdp_config.dtype": spec.model.dtype,
        # Of no use without logits, from which verl's compiled function computes the entropy.
        f"{group}use_torch_compile": False,
        f"{group}fsdp_config.use_torch_compile": False,
    }
    if placement.device == "cuda":
        return keys
    return keys | {f"{group}fsdp_config.model_dtype": "fp32"}


def _rollout(spec: DAPOJobSpec, placement: Placement, paths: Paths) -> Overrides:
    batch, rollout = spec.batch, "actor_rollout_ref.rollout."
    longest = spec.data.max_prompt_tokens + batch.max_response_tokens
    keys: Overrides = {
        f"{rollout}name": "vllm",
        f"{rollout}n": batch.responses_per_prompt,
        f"{rollout}temperature": batch.temperature,
        f"{rollout}top_p": batch.top_p,
        f"{rollout}dtype": spec.model.dtype,
        f"{rollout}seed": spec.data.seed,
        f"{rollout}max_model_len": longest,
        f"{rollout}tensor_model_parallel_size": spec.topology.rollout.tensor_parallel,
        f"{rollout}calculate_log_probs": True,
        f"{rollout}agent.agent_loop_manager_class": f"{ADAPTER}.agent_loop.GroupAgentLoopManager",
        f"{rollout}router_config_path": str(ROUTER),
        # Our agent loop scores the groups itself.
        "reward.num_workers": 0,
    }
    if placement.device == "cuda":
        return keys
    return keys | {
        f"{rollout}enforce_eager": True,
        # Without an extra process between the scheduler and the model, which is needed only to span several engines.
        f"{rollout}engine_kwargs.vllm.distributed_executor_backend": "uni",
        f"{rollout}free_cache_engine": False,
        f"{rollout}enable_sleep_mode": False,
        f"{rollout}max_num_seqs": 256,
        f"{rollout}max_num_batched_tokens": 8192,
        f"{rollout}checkpoint_engine.update_weights_bucket_megabytes": max(
            CPU_BUCKET_MIB, ceil(paths.largest_tensor_bytes / 2**20)
        ),
    }


def _topology(spec: DAPOJobSpec, placement: Placement) -> Overrides:
    trainer = spec.topology.trainer
    keys: Overrides = {
        "trainer.nnodes": trainer.replicas,
        "trainer.n_gpus_per_node": spec.topology.layout.slots_per_pod("trainer"),
        "trainer.device": placement.device,
        "actor_rollout_ref.rollout.agent.num_workers": 1,
    }
    if spec.topology.mode == "Colocated":
        return keys | {"trainer.v1.trainer_mode": "dapo_colocated"}
    return keys | {
        "trainer.v1.trainer_mode": "dapo_separated",
        "trainer.v1.separate_async.parameter_sync_step": spec.batch.updates_per_step,
        "actor_rollout_ref.rollout.nnodes": spec.topology.rollout.replicas,
        "actor_rollout_ref.rollout.n_gpus_per_node": spec.topology.layout.slots_per_pod("rollout"),
        "actor_rollout_ref.rollout.checkpoint_engine.backend": "nccl" if placement.device == "cuda" else "dapo_tcp",
        "actor_rollout_ref.rollout.checkpoint_engine.custom_backend_module": f"{ADAPTER}.tcp_transport",
        # Engines come and go: a group that is kept would have ranks that are gone.
        "actor_rollout_ref.rollout.checkpoint_engine.engine_kwargs.nccl.rebuild_group": True,
    }


def _ray(spec: DAPOJobSpec, placement: Placement) -> Overrides:
    if placement.ray_address is not None:
        return {"ray_kwargs.ray_init.address": placement.ray_address}
    slots = spec.topology.layout.slots("trainer") + spec.topology.layout.slots("rollout")
    return {
        # Otherwise Ray would join any cluster that runs on this machine.
        "ray_kwargs.ray_init.address": "local",
        "ray_kwargs.ray_init.include_dashboard": False,
        # Logical: with fewer, actors that wait for one another would not be scheduled. Threads are limited separately.
        "ray_kwargs.ray_init.num_cpus": max(32, 4 * slots),
        "ray_kwargs.ray_init.num_gpus": slots,
    }


def storage_units(spec: DAPOJobSpec) -> int:
    """Processes that hold the rows of the data queue, all of them on the head."""
    return max(1, spec.topology.trainer.replicas // 2)


def _schedule(spec: DAPOJobSpec, paths: Paths) -> Overrides:
    schedule = spec.schedule
    return {
        "trainer.total_epochs": schedule.epochs or 1_000_000,  # limited by the steps if they are set
        "trainer.total_training_steps": schedule.steps,
        "trainer.val_before_train": schedule.validate_before and bool(spec.data.validation),
        "trainer.test_freq": schedule.validate_every if spec.data.validation else -1,
        # verl saves after the last step too, but not with its -1, which is "never".
        "trainer.save_freq": schedule.checkpoint_every or LAST_STEP_ONLY,
        "trainer.default_local_dir": paths.checkpoints,
        "trainer.logger": [],
        "trainer.checkpoint_callback_class": f"{ADAPTER}.trainers.RecordedCheckpoints",
        # Set once the checkpoint's files have arrived (verl_adapter.trainers).
        "trainer.resume_mode": "disable",
        # Ours keeps what the store has not committed yet; verl's own retention does not survive restarts.
        "trainer.max_actor_ckpt_to_keep": None,
        "trainer.v1.sampler.custom_sampler.path": f"pkg://{ADAPTER}.group_buffer",
        "trainer.v1.sampler.custom_sampler.name": "GroupBuffer",
        "transfer_queue.backend.SimpleStorage.num_data_storage_units": storage_units(spec),
    }


def _ours(spec: DAPOJobSpec) -> Overrides:
    """Settings of our own parts of the loop: a top-level group that verl does not know."""
    penalty = spec.algorithm.overlong.penalty
    sampling = spec.algorithm.dynamic_sampling
    return {
        "dapo.seed": spec.data.seed,
        "dapo.train_weights": [data.weight for data in spec.data.train],
        "dapo.reward": reward_settings(spec.reward),
        "dapo.overlong": {
            "filter": spec.algorithm.overlong.filter,
            "penalty": penalty.model_dump(exclude={"enabled"}) if penalty is not None and penalty.enabled else None,
        },
        "dapo.dynamic_sampling": sampling.model_dump(),
        "dapo.max_staleness": spec.algorithm.max_staleness,
        "dapo.validation": {
            v.name: {"n": v.samples_per_prompt, "temperature": v.temperature, "top_p": v.top_p}
            for v in spec.data.validation
        },
        "dapo.log_samples_every": spec.schedule.log_samples_every,
        "dapo.record_groups": spec.schedule.record_groups,
    }


def reward_settings(reward: Reward) -> dict[str, Any]:
    """What `rewards.scorer` reads."""
    return {
        **reward.model_dump(exclude={"additional"}),
        "name": reward.names[0],
        "additional": [additional.model_dump() for additional in reward.additional],
    }


def overrides(spec: DAPOJobSpec, placement: Placement, paths: Paths) -> Overrides:
    """Every verl key that follows from the job, dotted, before `verlOverrides`."""
    return (
        _data(spec, paths)
        | _model(spec, placement, paths)
        | _algorithm(spec)
        | _old_log_probs(spec)
        | _importance(spec)
        | _rejection(spec)
        | _optimizer(spec, placement)
        | _trainer_engine(spec, placement)
        | _rollout(spec, placement, paths)
        | _topology(spec, placement)
        | _ray(spec, placement)
        | _schedule(spec, paths)
        | _ours(spec)
    )
