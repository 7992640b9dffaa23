"""Runs verl's trainer in this process: the sequence of verl's own `TaskRunnerV1`, without an actor of its own.

verl starts its driver as a Ray actor: one more process that imports torch and verl, and signals that end elsewhere.
"""

from typing import Any

import ray
import transfer_queue as tq
from omegaconf import DictConfig, OmegaConf
from verl.trainer.constants_ppo import get_ppo_ray_runtime_env
from verl.trainer.ppo.v1 import get_trainer_cls
from verl.utils.import_utils import load_class_from_fqn

from dapo_trainer.verl_adapter import group_server, trainers
from dapo_trainer.verl_adapter.session import Session, Stopped, open_session


def start_ray(config: DictConfig) -> None:
    init = dict(OmegaConf.to_container(config.ray_kwargs.ray_init, resolve=True))  # type: ignore[arg-type]
    env = get_ppo_ray_runtime_env(config) | (init.pop("runtime_env", None) or {})
    env["env_vars"]["TRANSFER_QUEUE_ENABLE"] = "1"
    ray.init(**init, runtime_env=env)


def run(config: DictConfig, session: Session) -> None:
    """Train to the end. Raises Stopped after a clean stop, with the open step's state saved."""
    open_session(session)
    group_server.register()
    start_ray(config)
    config.transfer_queue.enable = True
    OmegaConf.resolve(config)
    tq.init(config.transfer_queue)
    try:
        trainer = get_trainer_cls(config.trainer.v1.trainer_mode)(config=config)
        trainer.init()
        _fit(config, session, trainer)
    finally:
        tq.close()


def _fit(config: DictConfig, session: Session, trainer: Any) -> None:
    manager = load_class_from_fqn(config.actor_rollout_ref.rollout.agent.agent_loop_manager_class)
    agent_loop = manager.create(config=config, llm_client=trainer.get_llm_client())
    try:
        trainer.fit(agent_loop)
    except Stopped:
        _save_where_it_stands(trainer, session)
        raise


def _save_where_it_stands(trainer: Any, session: Session) -> None:
    """After a clean stop: a checkpoint of the last whole step, unless there is one."""
    step = session.last_recorded
    if step > session.last_saved:
        trainer.global_steps = step
        trainer._save_checkpoint()
        session.recorded(step, {})


assert trainers  # registers ours with verl
