"""What a GPU job meets in verl and vLLM before it touches a GPU, each as a function that returns a line or raises.

vLLM can be shown a GPU that is described and not there, so that its configuration can be made on any machine.
"""

import asyncio
import importlib
import os
from contextlib import redirect_stdout
from io import StringIO
from types import SimpleNamespace
from typing import Any, Final
from unittest.mock import patch

from omegaconf import DictConfig, OmegaConf

from dapo_trainer.plan.memory import GpuKind
from dapo_trainer.verl_adapter import environment
from dapo_trainer.verl_config.kernels import VARLEN

# Compute capabilities by the start of the name in `dapo plan`; what they compute with is decided by these.
_CAPABILITIES = {"a100": (8, 0), "a800": (8, 0), "l40s": (8, 9), "h": (9, 0), "b200": (10, 0)}


def describe(gpu: GpuKind) -> None:
    """From now on vLLM takes `gpu` for what this process runs on. Call it before other parts of vLLM are imported.

    Raises ImportError where vLLM's CUDA build is not installed, or a library that it is linked with.
    """
    import vllm.platforms as platforms
    from vllm.platforms.cuda import NonNvmlCudaPlatform
    from vllm.platforms.interface import DeviceCapability

    capability = next(numbers for start, numbers in _CAPABILITIES.items() if gpu.name.startswith(start))

    class DescribedGpu(NonNvmlCudaPlatform):
        @classmethod
        def get_device_capability(cls, device_id: int = 0) -> Any:
            return DeviceCapability(*capability)

        @classmethod
        def get_device_name(cls, device_id: int = 0) -> str:
            return gpu.name

        @classmethod
        def get_device_total_memory(cls, device_id: int = 0) -> int:
            return int(gpu.memory)

        @classmethod
        def is_fully_connected(cls, physical_device_ids: list[int]) -> bool:
            return True

    platforms._current_platform = DescribedGpu()


# What the driver, its actors, the trainer's ranks and vLLM's processes import on GPUs.
MODULES: Final = (
    "torch.nn.attention.varlen",
    "dapo_trainer.verl_adapter.cluster",
    "dapo_trainer.verl_adapter.runner",
    "dapo_trainer.verl_adapter.agent_loop",
    "dapo_trainer.verl_adapter.group_server",
    "dapo_trainer.verl_adapter.node_files",
    "dapo_trainer.verl_adapter.rank_extensions",
    "dapo_trainer.verl_adapter.tcp_transport",
    "verl.workers.engine_workers",
    "verl.workers.rollout.vllm_rollout.utils",
    "verl.workers.rollout.vllm_rollout.vllm_rollout",
    "vllm.v1.engine.core",
    "vllm.v1.worker.gpu_worker",
    "vllm.v1.worker.gpu_model_runner",
    "vllm.v1.attention.backends.flash_attn",
    "vllm.device_allocator.cumem",
)


def modules_import() -> str:
    """Raises ImportError for the first that does not."""
    for name in MODULES:
        importlib.import_module(name)
    return f"{len(MODULES)} modules"


def environment_is_known() -> str:
    """Raises ValueError for a variable that a run sets and vLLM does not know: it would be ignored."""
    from vllm import envs

    wanted = environment("cuda")
    names = [name for name in wanted if name.startswith("VLLM_")]
    if unknown := [name for name in names if name not in envs.environment_variables]:
        raise ValueError(f"vLLM does not know {', '.join(unknown)}")
    if other := [name for name, value in wanted.items() if os.environ.get(name) != value]:
        raise ValueError(f"not as a run sets it: {', '.join(f'{name}={os.environ.get(name)}' for name in other)}")
    return " ".join(f"{name}={wanted[name]}" for name in (*names, "NCCL_DEBUG"))


def verl_accepts(config: DictConfig) -> str:
    """verl's own validation. Raises what verl raises."""
    from importlib.metadata import version

    from verl.utils.config import validate_config

    actor = config.actor_rollout_ref.actor
    with redirect_stdout(StringIO()):
        validate_config(config, use_reference_policy=bool(actor.use_kl_loss), use_critic=False)
    return f"accepted by verl {version('verl')}"


def model_builds(config: DictConfig) -> str:
    """Builds the model without memory, with the job's attention, and patches it as verl's engine does."""
    import torch
    from transformers import AutoModelForCausalLM
    from verl.models.transformers.monkey_patch import apply_monkey_patch

    given = _model_config(config)
    with torch.device("meta"), redirect_stdout(StringIO()):
        model = AutoModelForCausalLM.from_config(given.hf_config, dtype=torch.float32)
        ranks = int(config.actor_rollout_ref.actor.ulysses_sequence_parallel_size)
        forward = type(model).forward
        try:
            apply_monkey_patch(
                model,
                ulysses_sp_size=ranks,
                use_remove_padding=given.use_remove_padding,
                use_fused_kernels=given.use_fused_kernels,
                fused_kernels_backend=given.fused_kernel_options.get("impl_backend"),
            )
        finally:
            type(model).forward = forward
    _check_attention(model)
    name = model.config._attn_implementation
    return (
        f"{type(model).__name__}, {model.num_parameters():,} weights, attention {name}, {ranks} rank(s) to a response"
    )


def _check_attention(model: Any) -> None:
    """Raises ValueError when the layers would not compute with it: none is registered, or not for this width."""
    from transformers import AttentionInterface

    name = model.config._attn_implementation
    AttentionInterface().get_interface(name, None)
    width = model.model.layers[0].self_attn.head_dim
    if name == VARLEN and (width > 256 or width % 8):
        raise ValueError(f"the kernels of {name} need heads of 8 to 256 in steps of 8, and this model's have {width}")


def _model_config(config: DictConfig) -> Any:
    from verl.utils.config import omega_conf_to_dataclass
    from verl.workers.config import HFModelConfig

    return omega_conf_to_dataclass(config.actor_rollout_ref.model, dataclass_type=HFModelConfig)


def weights_are_transferred(config: DictConfig) -> str:
    """Looks up what hands weights to vLLM. Raises ValueError when a package for it is missing."""
    importlib.import_module("verl.checkpoint_engine")
    from verl.checkpoint_engine.base import CheckpointEngineRegistry

    backend = str(config.actor_rollout_ref.rollout.checkpoint_engine.backend)
    return f"{backend}: {CheckpointEngineRegistry.get(backend).__name__}"


def vllm_accepts(config: DictConfig) -> str:
    """Lets our server make vLLM's arguments and vLLM its configuration of them. Raises what vLLM raises."""
    made = asyncio.run(_engine_config(config))
    if made.use_v2_model_runner:
        raise ValueError("vLLM would use its second model runner, with which weight updates are not tested")
    sleep = "on" if made.model_config.enable_sleep_mode else "off"
    return (
        f"{made.model_config.max_model_len:,} tokens, {made.scheduler_config.max_num_seqs} sequences, tensor parallel "
        f"{made.parallel_config.tensor_parallel_size}, sleep mode {sleep}, first model runner"
    )


async def _engine_config(config: DictConfig) -> Any:
    import ray
    from verl.workers.rollout.replica import RolloutMode
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.usage.usage_lib import UsageContext

    from dapo_trainer.verl_adapter.group_server import GroupServer

    made = []

    class Unstarted(GroupServer):
        async def run_server(self, args: Any) -> None:
            made.append(AsyncEngineArgs.from_cli_args(args).create_engine_config(UsageContext.OPENAI_API_SERVER))

    rollout = config.actor_rollout_ref.rollout
    devices = int(rollout.tensor_model_parallel_size)
    visible = ",".join(str(index) for index in range(devices))
    with patch.dict(os.environ), redirect_stdout(StringIO()):
        os.environ.pop("DAPO_READY_FILE", None)
        with patch.object(ray, "get_runtime_context", lambda: SimpleNamespace(get_job_id=lambda: "00")):
            mode = RolloutMode.HYBRID if config.actor_rollout_ref.hybrid_engine else RolloutMode.STANDALONE
            server = Unstarted(rollout, config.actor_rollout_ref.model, mode, [], 0, 0, devices, 1, visible)
        for bound in (server._master_sock, server._dp_rpc_sock, server._dp_master_sock):
            bound.close()
        await super(GroupServer, server).launch_server()  # ours goes on with an engine that runs
    return made[0]


def without_tokenizer(config: DictConfig) -> DictConfig:
    """The same for a model folder that has no more than a config.json."""
    changed = config.copy()
    OmegaConf.update(changed, "actor_rollout_ref.model.load_tokenizer", False, force_add=True)
    return changed
