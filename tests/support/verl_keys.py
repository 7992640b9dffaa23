"""What tests of verl's configuration start from: paths, placements, prefixes of keys, and a job's spec."""

from typing import Any

from builders import job
from omegaconf import OmegaConf

from dapo_core.jobspec import DAPOJobSpec
from dapo_trainer.verl_config import Paths, Placement

PATHS = Paths(model="/m", train=("/t.parquet",), validation=("/v.parquet",), checkpoints="/c")
CPU, CUDA = Placement("cpu"), Placement("cuda")
ACTOR, ROLLOUT, REFERENCE = "actor_rollout_ref.actor.", "actor_rollout_ref.rollout.", "actor_rollout_ref.ref."


def spec(**groups: Any) -> DAPOJobSpec:
    return job(**groups).spec


def value(config: Any, key: str) -> Any:
    found = OmegaConf.select(config, key)
    return OmegaConf.to_container(found) if OmegaConf.is_config(found) else found
