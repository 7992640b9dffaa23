"""Runs verl's trainer in this process: the sequence of verl's own `TaskRunnerV1`, without an actor of its own.

verl starts its driver as a Ray actor: one more process that imports torch and verl, and signals that end elsewhere.
"""

from collections.abc import Callable
from typing import Any

from omegaconf import DictConfig, OmegaConf
from verl.trainer.ppo.v1 import get_trainer_cls
from verl.utils.import_utils import load_class_from_fqn

from dapo_core.errors import StoppedError
from dapo_trainer.verl_adapter import group_server, trainers
from dapo_trainer.verl_adapter.cluster import Cluster
from dapo_trainer.verl_adapter.session import Session, open_session

assert trainers  # imported for its registrations


def run(config: DictConfig, session: Session, cluster: Cluster, on_ready: Callable[[], None]) -> None:
    """Train to the end. Raises StoppedError after a clean stop, with the last whole step saved.

    `on_ready` is called when all engines are up: from then on a stop is clean, and asked for by `session.stop`.
    """
    open_session(session)
    group_server.register()
    OmegaConf.resolve(config)
    cluster.queue_ready()
    trainer = get_trainer_cls(config.trainer.v1.trainer_mode)(config=config)
    trainer.init()
    manager = load_class_from_fqn(config.actor_rollout_ref.rollout.agent.agent_loop_manager_class)
    agent_loop = manager.create(config=config, llm_client=trainer.get_llm_client())
    on_ready()
    try:
        with trainer.watch_engines():
            _fit(trainer, agent_loop, session)
    finally:
        agent_loop.close()


def _fit(trainer: Any, agent_loop: Any, session: Session) -> None:
    try:
        trainer.fit(agent_loop)
    except StoppedError:
        _save_where_it_stands(trainer, session)
        raise


def _save_where_it_stands(trainer: Any, session: Session) -> None:
    """After a clean stop: a checkpoint of the last whole step, unless there is one."""
    step = session.last_recorded
    if step > session.last_saved:
        trainer.global_steps = step
        trainer._save_checkpoint()
        session.saved_after(step)
