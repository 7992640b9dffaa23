"""Everything that imports verl, vLLM's engine or TransferQueue: our parts on their public extension points.

| module | verl's extension point |
| --- | --- |
| cpu_platform, cpu_vllm | `PlatformRegistry`, entry point `verl.plugins` |
| policy_loss | `register_policy_loss`, through `model.external_lib` |
| tcp_transport | `CheckpointEngineRegistry`, through `checkpoint_engine.custom_backend_module` |
| group_server | `RolloutReplicaRegistry` |
| agent_loop | `rollout.agent.agent_loop_manager_class` |
| group_buffer | `trainer.v1.sampler.custom_sampler` |
| trainers | `register_trainer` |
| checkpoint_callback | `trainer.checkpoint_callback_class` |

Nothing here is imported by another part but `environment` and `runner` (by `dapo_trainer.main`).
"""

import os


def environment(device: str) -> dict[str, str]:
    """What every process of a run must see before it imports verl."""
    shared = {"TOKENIZERS_PARALLELISM": "false", "RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "0"}
    if device != "cpu":
        return shared
    return shared | {
        "VERL_PLATFORM": "cpu",
        # verl's FSDP engine is registered for accelerators only; this is the name it is looked up by.
        "VERL_ENGINE_DEVICE": "cuda",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    }
