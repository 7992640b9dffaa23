"""vLLM engines without a trainer, and validation on them: the engine of `dapo evaluate`."""

import ray
from omegaconf import DictConfig, OmegaConf
from torch.utils.data import DataLoader
from verl.trainer.ppo.utils import create_rl_dataset
from verl.utils import hf_tokenizer
from verl.utils.dataset.rl_dataset import collate_fn
from verl.workers.rollout.llm_server import LLMServerManager

from dapo_trainer.groups.evaluated import Evaluated
from dapo_trainer.verl_adapter import group_server
from dapo_trainer.verl_adapter.agent_loop import GroupAgentLoopManager
from dapo_trainer.verl_adapter.engine_watch import EngineWatch
from dapo_trainer.verl_adapter.group_server import GroupClient
from dapo_trainer.verl_adapter.session import Session, open_session
from dapo_trainer.verl_adapter.validation import Told, validate


def evaluate(config: DictConfig, session: Session, told: Told) -> list[Evaluated]:
    """Judge every prompt of the validation files with the model of `config`. Raises what verl, Ray and vLLM raise."""
    open_session(session)
    group_server.register()
    # In training the weights come from the trainer; here from the model's own files.
    OmegaConf.update(config, "actor_rollout_ref.rollout.load_format", "auto")
    OmegaConf.resolve(config)
    # Without an address Ray would join whatever cluster another process of this machine has started.
    ray.init(**{"address": "local"} | OmegaConf.to_container(config.ray_kwargs.ray_init))
    servers = LLMServerManager.create(config=config)
    loop = GroupAgentLoopManager.create(config=config, llm_client=servers.get_client(client_cls=GroupClient))
    try:
        with EngineWatch(servers.server_handles):
            return validate(_loader(config), loop.generate_sequences, 0, told)
    finally:
        loop.close()
        ray.shutdown()


def _loader(config: DictConfig) -> DataLoader:
    """As verl's trainer makes its own for validation: the whole set in one batch, in the file's order."""
    tokenizer = hf_tokenizer(config.actor_rollout_ref.model.path)
    dataset = create_rl_dataset(config.data.val_files, config.data, tokenizer, None, is_train=False)
    return DataLoader(dataset, batch_size=len(dataset), shuffle=False, collate_fn=collate_fn)
