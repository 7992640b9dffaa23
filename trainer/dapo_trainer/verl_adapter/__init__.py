"""Everything that imports verl, vLLM's engine or TransferQueue: our parts on their public extension points.

| module | verl's extension point |
| --- | --- |
| cpu_platform, cpu_vllm, import_hooks | `PlatformRegistry`, entry point `verl.plugins` |
| policy_loss | `register_policy_loss`, through `model.external_lib` |
| tcp_transport | `CheckpointEngineRegistry`, through `checkpoint_engine.custom_backend_module` |
| cluster, engine_watch, runner | `TaskRunnerV1`'s sequence |
| group_server | `RolloutReplicaRegistry` |
| group_router | `rollout.router_config_path` |
| agent_loop | `rollout.agent.agent_loop_manager_class` |
| group_buffer | `trainer.v1.sampler.custom_sampler` |
| trainers | `register_trainer` |
| checkpoint_callback | `trainer.checkpoint_callback_class` |
| evaluator | `LLMServerManager`, engines without a trainer |
| merge | `FSDPModelMerger` |

Nothing here is imported by another part but `environment`, `cluster` and `runner` (by `dapo_trainer.main`).
"""

import os


def environment(device: str) -> dict[str, str]:
    """What every process of a run must see before it imports Ray or verl; set where a process starts, not by Ray.

    Ray would start processes anew for actors that ask for variables of their own.
    """
    shared = {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_DEDUP_LOGS": "0",
        "TOKENIZERS_PARALLELISM": "false",
        "TRANSFER_QUEUE_ENABLE": "1",
        # From here on verl's own defaults for its workers (verl.trainer.constants_ppo).
        "NCCL_DEBUG": "WARN",
        "VLLM_LOGGING_LEVEL": "WARN",
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "true",
        "VLLM_DISABLE_COMPILE_CACHE": "1",
    }
    if device != "cpu":
        return shared
    return shared | {
        "VERL_PLATFORM": "cpu",
        # verl's FSDP engine is registered for accelerators only; this is the name it is looked up by.
        "VERL_ENGINE_DEVICE": "cuda",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        # Lets vLLM run the model in its engine's process instead of one more (the engine itself stays apart). Its
        # reason for the extra process, threads bound one by one, does not hold where OMP_NUM_THREADS sets them.
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        # vLLM's sampler compiles itself even when told to run eagerly: that takes a C++ compiler, and seconds.
        "TORCH_COMPILE_DISABLE": "1",
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    }
