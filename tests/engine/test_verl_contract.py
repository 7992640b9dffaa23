"""The names of verl, vLLM and TransferQueue that we use: an upgrade that takes one away fails here, by name."""

import ast
import dataclasses
import inspect
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import engines
import pytest

import dapo_trainer
from dapo_trainer.verl_config.overrides import LOSS_MODE

SOURCE = Path(dapo_trainer.__file__).parent
ENGINES = ("verl", "vllm", "transfer_queue", "tensordict")


@pytest.fixture(scope="module", autouse=True)
def _engines() -> None:
    engines.load("dapo_trainer.verl_adapter.runner")
    engines.load("dapo_trainer.verl_adapter.tcp_transport")
    engines.load("dapo_trainer.verl_adapter.policy_loss")
    engines.load("dapo_trainer.verl_adapter.trainers")


def find(path: str) -> Any:
    """`package.module:Name.attribute`."""
    module, _, names = path.partition(":")
    try:
        found: Any = import_module(module)
    except ImportError as error:
        pytest.fail(f"{module} is gone, which dapo_trainer uses: {error}")
    for name in names.split("."):
        if not hasattr(found, name):
            pytest.fail(f"{path} is gone, which dapo_trainer uses: {found!r} has no {name}")
        found = getattr(found, name)
    return found


def imported() -> list[str]:
    """Every name that the trainer imports from an engine, read from its source."""
    found = set()
    for file in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] in ENGINES:
                found |= {f"{node.module}:{alias.name}" for alias in node.names}
    return sorted(found)


# They load libraries of a CUDA build, which `make gpu-check` does; here their source is read.
CUDA_MODULES = {"vllm.platforms.cuda"}


@pytest.mark.parametrize("path", imported())
def test_an_imported_name(path: str) -> None:
    module, _, name = path.partition(":")
    if module in CUDA_MODULES:
        spec = find_spec(module)
        assert spec is not None and spec.origin is not None
        defined = ast.parse(Path(spec.origin).read_text()).body
        assert name in {node.name for node in defined if isinstance(node, ast.ClassDef)}
    else:
        find(path)


TRAINER = "verl.trainer.ppo.v1.trainer_base:PPOTrainer"
SERVER = "verl.workers.rollout.vllm_rollout.vllm_async_server:vLLMHttpServer"
REPLICA = "verl.workers.rollout.vllm_rollout.vllm_async_server:vLLMReplica"
CLIENT = "verl.workers.rollout.llm_server:FullyAsyncLLMServerClient"
MERGER = "verl.model_merger.fsdp_model_merger:FSDPModelMerger"
ENGINE = "verl.checkpoint_engine.base:CheckpointEngine"
QUEUE_STORAGE = "transfer_queue.storage:AsyncSimpleStorageManager"


@pytest.mark.parametrize(
    ("path", "parameters"),
    [
        (f"{TRAINER}.init", ""),
        (f"{TRAINER}.fit", "agent_loop_manager"),
        (f"{TRAINER}.prepare_step", ""),
        (f"{TRAINER}.on_train_begin", ""),
        (f"{TRAINER}.on_step_end", ""),
        (f"{TRAINER}._setup", ""),
        (f"{TRAINER}._validate", ""),
        (f"{TRAINER}._save_checkpoint", ""),
        (f"{TRAINER}._compute_old_log_prob", "batch metrics"),
        (f"{TRAINER}._update_actor", "batch metrics"),
        (f"{TRAINER}._compute_metrics", "batch metrics timing_raw global_steps epoch"),
        (f"{TRAINER}._build_replay_buffer", ""),
        (f"{TRAINER}._add_prompts_to_generate", "num_prompts"),
        (f"{TRAINER}._add_batch_to_generate", ""),
        (f"{TRAINER}._reissue_inflight_prompts", "partition_id"),
        (f"{TRAINER}.get_llm_client", ""),
        ("verl.trainer.ppo.v1:get_trainer_cls", "name"),
        ("verl.trainer.ppo.v1:register_trainer", "name"),
        ("verl.trainer.ppo.checkpoint_callback:CheckpointCallback.on_save", "trainer global_step checkpoint_dir"),
        ("verl.trainer.ppo.core_algos:register_policy_loss", "name"),
        *(
            (
                f"verl.trainer.ppo.core_algos:compute_policy_loss_{loss}",
                "old_log_prob log_prob advantages response_mask loss_agg_mode config rollout_is_weights",
            )
            for loss in ("vanilla", "gspo", "cispo", "sapo")
        ),
        ("verl.utils.torch_functional:masked_mean", "values mask"),
        (
            "verl.utils.experimental.torch_functional:FusedLinearForPPO.forward",
            "hidden_states vocab_weights input_ids temperature",
        ),
        ("verl.utils.ulysses:gather_seq_scatter_heads", "x seq_dim head_dim"),
        ("verl.utils.ulysses:gather_heads_scatter_seq", "x seq_dim head_dim"),
        ("verl.utils.tensordict_utils:get_tensordict", "tensor_dict"),
        ("verl.utils.tensordict_utils:assign_non_tensor_data", "tensor_dict key val"),
        (f"{ENGINE}.prepare", ""),
        (f"{ENGINE}.build_topology", "actor_wg_world_size rollout_world_size metadata"),
        (f"{ENGINE}.init_process_group", ""),
        (f"{ENGINE}.finalize", ""),
        (f"{ENGINE}.send_weights", "weights global_steps"),
        (f"{ENGINE}.receive_weights", "global_steps"),
        (f"{SERVER}.generate", "prompt_ids sampling_params request_id"),
        (f"{REPLICA}.launch_servers", ""),
        (f"{REPLICA}._get_server_name_prefix", ""),
        (f"{CLIENT}.__init__", "load_balancer_handle only_hybrid"),
        ("verl.workers.rollout.replica:RolloutReplicaRegistry.register", "name"),
        ("verl.workers.rollout.llm_server:LLMServerManager.get_client", "client_cls"),
        ("verl.trainer.ppo.utils:create_rl_dataset", "data_paths data_config tokenizer processor is_train"),
        ("verl.utils.dataset.rl_dataset:collate_fn", "data_list"),
        (f"{MERGER}._load_and_merge_state_dicts", "world_size total_shards mesh_shape mesh_dim_names"),
        (f"{MERGER}._merge_by_placement", "tensors placement"),
        (f"{MERGER}.merge_and_save", ""),
        ("verl.plugin.platform:PlatformRegistry.register", "platform"),
        ("vllm.model_executor.layers.utils:dispatch_cpu_unquantized_gemm", "layer remove_weight"),
        ("vllm.sampling_params:SamplingParams.from_optional", "output_kind detokenize max_tokens logprobs"),
        ("vllm.v1.core.sched.scheduler:Scheduler.update_from_output", "scheduler_output model_runner_output"),
        ("vllm.v1.core.sched.scheduler:Scheduler.finish_requests", "request_ids finished_status"),
        ("verl.utils.tensordict_utils:index_select_tensor_dict", "batch indices"),
        ("verl.workers.utils.losses:no_padding_2_padding", "tensor data"),
        ("verl.workers.utils.padding:response_from_nested", "tensor response_mask"),
        ("verl.workers.utils.padding:response_to_nested", "tensor response_mask"),
        (f"{QUEUE_STORAGE}._put_to_single_storage_unit", "global_indexes storage_data target_storage_unit"),
        (f"{QUEUE_STORAGE}._get_from_single_storage_unit", "global_indexes fields target_storage_unit"),
        ("transfer_queue:init", "conf"),
        ("transfer_queue:close", ""),
        ("transfer_queue:kv_list", "partition_id"),
        ("transfer_queue:kv_clear", "keys partition_id"),
        ("transfer_queue:kv_batch_get", "keys partition_id select_fields"),
        ("transfer_queue:async_kv_batch_put", "keys partition_id fields tags"),
        ("transfer_queue:KVBatchMeta.__init__", "partition_id keys tags"),
    ],
    ids=lambda value: value if isinstance(value, str) and ":" in value else "",
)
def test_a_signature(path: str, parameters: str) -> None:
    there = inspect.signature(find(path)).parameters
    missing = [name for name in parameters.split() if name not in there]
    assert not missing, f"{path} has no parameter {', '.join(missing)}; it has {', '.join(there)}"


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("verl.workers.config.engine:FSDPEngineConfig", "mixed_precision model_dtype dtype use_torch_compile"),
        ("verl.workers.config.rollout:RolloutConfig", "enable_sleep_mode router_config_path checkpoint_engine"),
        ("verl.workers.config.rollout:AgentLoopConfig", "agent_loop_manager_class num_workers"),
        (
            "verl.trainer.config.algorithm:RolloutCorrectionConfig",
            "rollout_is rollout_is_threshold rollout_rs rollout_rs_threshold bypass_mode",
        ),
        ("transfer_queue:KVBatchMeta", "keys tags partition_id extra_info"),
    ],
    ids=lambda value: value if ":" in value else "",
)
def test_a_dataclass(path: str, fields: str) -> None:
    there = {field.name for field in dataclasses.fields(find(path))}
    missing = [name for name in fields.split() if name not in there]
    assert not missing, f"{path} has no field {', '.join(missing)}"


@pytest.mark.parametrize(
    ("level", "cap"), [pytest.param("token", 2.0, id="token"), pytest.param("sequence", 5.0, id="sequence")]
)
def test_verl_takes_our_importance_weights(level: str, cap: float) -> None:
    config = find("verl.trainer.config.algorithm:RolloutCorrectionConfig")
    ours = config(rollout_is=level, rollout_is_threshold=cap)
    maker = config.decoupled_token_is if level == "token" else config.decoupled_seq_is
    assert ours == maker(threshold=cap)


@pytest.mark.parametrize(
    ("fragment", "path"),
    [
        pytest.param(
            "import FusedLinearForPPO",
            "verl.models.transformers.dense_common:forward_with_torch_backend",
            id="log-probs: imported when it is called, so that ours is",
        ),
        pytest.param("custom_sampler", f"{TRAINER}._build_replay_buffer", id="replay buffer by class path"),
        pytest.param("refill_fn=", f"{TRAINER}._build_replay_buffer", id="refills"),
        pytest.param("_reissue_inflight_prompts()", f"{TRAINER}.fit", id="prompts go out again before on_train_begin"),
        pytest.param("self.server_class", f"{REPLICA}.launch_servers", id="our server class"),
        pytest.param("_server_handle", f"{REPLICA}.launch_servers", id="our server's name"),
        pytest.param("No available servers in load balancer", f"{CLIENT}._acquire_server", id="the words it waits on"),
        pytest.param("parameter_sync_step", f"{TRAINER}.step", id="mini-batches of a separated step"),
        pytest.param("self._only_hybrid", f"{CLIENT}.__init__", id="whether to wait for a server"),
        pytest.param(
            "self._load_balancer", "verl.workers.rollout.llm_server:LLMServerClient.__init__", id="our router"
        ),
        pytest.param("global_steps", f"{SERVER}", id="the server's weight version"),
    ],
)
def test_what_we_rely_on_inside(fragment: str, path: str) -> None:
    """No signature shows these: they are looked for in the source."""
    assert fragment in inspect.getsource(find(path)), f"{path} does not use {fragment} any more"


def test_our_parts_are_registered_under_the_names_the_configuration_uses() -> None:
    from verl.checkpoint_engine.base import CheckpointEngineRegistry
    from verl.trainer.ppo.core_algos import get_policy_loss_fn
    from verl.trainer.ppo.v1 import get_trainer_cls

    assert get_trainer_cls("dapo_colocated").__name__ == "Colocated"
    assert get_trainer_cls("dapo_separated").__name__ == "Separated"
    assert {get_policy_loss_fn(mode).__module__ for mode in LOSS_MODE.values()} == {
        "dapo_trainer.verl_adapter.policy_loss"
    }
    assert CheckpointEngineRegistry._registry["dapo_tcp"].__name__ == "TcpTransport"


@pytest.mark.parametrize("name", ["Colocated", "Separated"])
def test_every_hook_overrides_something(name: str) -> None:
    """A hook that verl renamed would never be called."""
    trainers = import_module("dapo_trainer.verl_adapter.trainers")
    upstream = {
        attribute
        for base in getattr(trainers, name).__mro__[2:]
        if "verl." in base.__module__
        for attribute in dir(base)
    }
    verls = {a for a in upstream if not hasattr(object, a)}
    ours = {n for n, member in vars(trainers._Hooks).items() if inspect.isfunction(member)}
    own = {"_phase", "_record", "_record_groups", "_engine_metrics"}
    assert ours - own - verls == set()
