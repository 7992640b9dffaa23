"""Validation by groups: in training, and for `dapo evaluate` on vLLM engines without a trainer."""

import uuid
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import ray
from omegaconf import DictConfig, OmegaConf
from tensordict import TensorDict
from torch.utils.data import DataLoader
from verl.trainer.ppo.utils import create_rl_dataset
from verl.utils import hf_tokenizer
from verl.utils import tensordict_utils as tu
from verl.utils.dataset.rl_dataset import collate_fn
from verl.workers.rollout.llm_server import LLMServerManager

from dapo_trainer.groups.evaluated import Evaluated
from dapo_trainer.process.fork_server import as_python
from dapo_trainer.verl_adapter import group_server
from dapo_trainer.verl_adapter.agent_loop import VALIDATION, GroupAgentLoopManager
from dapo_trainer.verl_adapter.engine_watch import EngineWatch
from dapo_trainer.verl_adapter.group_buffer import WAKE_SECONDS
from dapo_trainer.verl_adapter.group_client import GroupClient
from dapo_trainer.verl_adapter.ray_processes import without_unused
from dapo_trainer.verl_adapter.session import Session, current, open_session

Progress = Callable[[int, int], None]
"""Called with the number of prompts that are done, and of all prompts."""


def validate(
    loader: Iterable[dict[str, Any]],
    generate: Callable[[TensorDict], None],
    step: int,
    progress: Progress = lambda _done, _total: None,
) -> list[Evaluated]:
    """Generate and score all prompts of `loader` at once; verl's own validation puts every response into its queue."""
    session, expected, done = current(), 0, 0
    for rows in loader:
        rows["uid"] = np.array([str(uuid.uuid4()) for _ in range(len(rows["raw_prompt"]))], dtype=object)
        batch = tu.get_tensordict(rows)
        tu.assign_non_tensor_data(batch, "global_steps", step)
        tu.assign_non_tensor_data(batch, "validate", True)
        generate(batch)
        expected += len(rows["uid"])
    while done < expected:
        session.while_waiting()
        done += len(session.groups.take(VALIDATION, WAKE_SECONDS))
        progress(done, expected)
    evaluated, session.evaluated = session.evaluated, []
    return evaluated


def evaluate(config: DictConfig, session: Session, progress: Progress) -> list[Evaluated]:
    """Evaluate the model of `config` on every prompt of the validation files. Raises what verl, Ray and vLLM raise."""
    open_session(session)
    group_server.register()
    # In training the weights come from the trainer; here from the model's own files.
    OmegaConf.update(config, "actor_rollout_ref.rollout.load_format", "auto")
    OmegaConf.resolve(config)
    # Without an address Ray would join any cluster that another process of this machine has started.
    with as_python(), without_unused():
        ray.init(**{"address": "local"} | OmegaConf.to_container(config.ray_kwargs.ray_init))
    servers = LLMServerManager.create(config=config)
    loop = GroupAgentLoopManager.create(config=config, llm_client=servers.get_client(client_cls=GroupClient))
    try:
        with EngineWatch(servers.server_handles):
            return validate(_loader(config), loop.generate_sequences, 0, progress)
    finally:
        loop.close()
        ray.shutdown()


def _loader(config: DictConfig) -> DataLoader:
    """Like the validation loader of verl's trainer: the whole set in one batch, in the order of the files."""
    tokenizer = hf_tokenizer(config.actor_rollout_ref.model.path)
    dataset = create_rl_dataset(config.data.val_files, config.data, tokenizer, None, is_train=False)
    return DataLoader(dataset, batch_size=len(dataset), shuffle=False, collate_fn=collate_fn)
