"""Everything that imports verl, vLLM's engine or TransferQueue: our parts on their public extension points.

| module | verl's extension point |
| --- | --- |
| cpu_platform, cpu_vllm, import_hooks | `PlatformRegistry`, entry point `verl.plugins` |
| rank_extensions | `model.external_lib`: loads the next seven |
| policy_loss | `register_policy_loss` |
| sharded_engine, resharding, checkpoint_parts | `EngineRegistry` |
| attention_varlen, length_buckets | transformers' `AttentionInterface`, and verl's Ulysses group |
| token_log_probs | `FusedLinearForPPO`; where no kernel is fused it replaces `logprobs_from_logits_v2` |
| cpu_linear | none: replaces torch's `linear` for float32 on CPUs |
| ragged_rows | none: replaces four functions of verl for rows of different length |
| packed_rows | TransferQueue's `StorageManagerFactory` |
| tcp_transport | `CheckpointEngineRegistry`, through `checkpoint_engine.custom_backend_module` |
| cluster, engine_watch, node_files, runner, session | `TaskRunnerV1`'s sequence |
| preload, ray_agent, ray_processes | none: how Ray's processes start |
| group_server | `RolloutReplicaRegistry` |
| group_client | `LLMServerManager.get_client` |
| group_router | `rollout.router_config_path` |
| agent_loop | `rollout.agent.agent_loop_manager_class` |
| group_buffer | `trainer.v1.sampler.custom_sampler` |
| trainers, batch_parts | `register_trainer`, `trainer.checkpoint_callback_class` |
| validation | `LLMServerManager`, for engines without a trainer |
| merge | `FSDPModelMerger` |
| stack_checks | `validate_config`, `HFModelConfig`, `vLLMHttpServer`, vLLM's platform |

Other rooms import only `environment` and `preload` (where a process starts), `cluster`, `node_files`, `runner` and
`session` (`dapo_trainer.main`), `session` (`dapo_trainer.run_report`), `session` and `validation`
(`dapo_trainer.evaluate.worker`), `merge` (`dapo_trainer.checkpoint_tool.model_export`) and `token_log_probs`
(`dapo_trainer.doctor.kernel_accuracy`). verl and Ray load the others by their dotted names, which are in
`verl_config.overrides` and in the entry point `verl.plugins`.
"""

import os
from typing import Final

import psutil

ENGINE_VENDOR: Final = "dapo"
# The data queue copies tensors with this many threads by default.
QUEUE_THREADS: Final = 8


def environment(device: str) -> dict[str, str]:
    """Variables that every process of a run needs before it imports Ray or verl; set where a process starts.

    Set through Ray, they would make it start new processes for the actors that request them.
    """
    shared = {
        "RAY_USAGE_STATS_ENABLED": "0",
        # Metrics and the history of tasks are for Ray's dashboard, which no run has.
        "RAY_enable_metrics_collection": "0",
        "RAY_task_events_report_interval_ms": "0",
        "RAY_DEDUP_LOGS": "0",
        # A call of Ray without a cluster fails. Ray would start one of its own, for a thread that outlives the run's.
        "RAY_ENABLE_AUTO_CONNECT": "0",
        "TOKENIZERS_PARALLELISM": "false",
        "TRANSFER_QUEUE_ENABLE": "1",
        # The data queue warns of more threads than cores with every call.
        "TQ_NUM_THREADS": os.environ.get("TQ_NUM_THREADS", str(_queue_threads())),
        # verl looks engines up by device and vendor; `sharded_engine` has this one.
        "VERL_ENGINE_VENDOR": ENGINE_VENDOR,
        # From here on verl's own defaults for its workers (verl.trainer.constants_ppo).
        "NCCL_DEBUG": "WARN",
        "VLLM_LOGGING_LEVEL": "WARN",
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "true",
        "VLLM_DISABLE_COMPILE_CACHE": "1",
        # On CUDA, vLLM 0.31 takes its second model runner by default. Sleep, wake-up and weight updates by verl were
        # tested with the first, which processors have.
        "VLLM_USE_V2_MODEL_RUNNER": "0",
    }
    if device != "cpu":
        return shared
    return shared | {
        "VERL_PLATFORM": "cpu",
        # verl's FSDP engine is registered for accelerators only; this is the name by which it is looked up.
        "VERL_ENGINE_DEVICE": "cuda",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        # Lets vLLM run the model in its engine's process instead of another one (the engine itself stays separate). The
        # extra process is there to pin threads, which is not needed where OMP_NUM_THREADS limits them.
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        # vLLM compiles its sampler even in eager mode: that needs a C++ compiler, and takes seconds.
        "TORCH_COMPILE_DISABLE": "1",
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    }


def _queue_threads() -> int:
    return min(QUEUE_THREADS, psutil.cpu_count(logical=False) or QUEUE_THREADS)
