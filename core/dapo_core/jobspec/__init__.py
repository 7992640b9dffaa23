"""The DAPOJob: one set of models for the CRD, the reference, the operator, `dapo plan` and `dapo run`."""

from dapo_core.jobspec.algorithm import Algorithm, DynamicSampling, ImportanceCorrection, Overlong, OverlongPenalty
from dapo_core.jobspec.guard_fields import GUARD_DEFAULTS, Guard
from dapo_core.jobspec.inputs import Data, Lora, Model, TrainData, ValidationData
from dapo_core.jobspec.job import DAPOJob, DAPOJobSpec, Metadata
from dapo_core.jobspec.operations import Checkpoints, FailureRule, Gang, RunPolicy, Stores
from dapo_core.jobspec.parse import absolute_paths, field_sources, load_job, parse_job, read_mapping
from dapo_core.jobspec.presets import PRESETS
from dapo_core.jobspec.reward import Reward
from dapo_core.jobspec.topology import Head, ModelCache, Resources, Rollout, Scratch, Topology, Trainer
from dapo_core.jobspec.training import Batch, Optimizer, Schedule

__all__ = [
    "GUARD_DEFAULTS",
    "PRESETS",
    "Algorithm",
    "Batch",
    "Checkpoints",
    "DAPOJob",
    "DAPOJobSpec",
    "Data",
    "DynamicSampling",
    "FailureRule",
    "Gang",
    "Guard",
    "Head",
    "ImportanceCorrection",
    "Lora",
    "Metadata",
    "Model",
    "ModelCache",
    "Optimizer",
    "Overlong",
    "OverlongPenalty",
    "Resources",
    "Reward",
    "Rollout",
    "RunPolicy",
    "Schedule",
    "Scratch",
    "Stores",
    "Topology",
    "TrainData",
    "Trainer",
    "ValidationData",
    "absolute_paths",
    "field_sources",
    "load_job",
    "parse_job",
    "read_mapping",
]
