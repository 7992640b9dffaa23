"""The whole DAPOJob: `dapo.io/v1alpha1`."""

import hashlib
import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator
from pydantic.alias_generators import to_camel

from dapo_core.jobspec import patterns
from dapo_core.jobspec.algorithm import Algorithm
from dapo_core.jobspec.base import FreeObject, Items, SpecModel, filled
from dapo_core.jobspec.guard_fields import GUARD_DEFAULTS, Guard
from dapo_core.jobspec.inputs import Data, Model
from dapo_core.jobspec.operations import Checkpoints, RunPolicy, Stores, TrackerName
from dapo_core.jobspec.presets import fill
from dapo_core.jobspec.reward import Reward
from dapo_core.jobspec.rules import FROZEN_GROUPS, check
from dapo_core.jobspec.topology import Topology
from dapo_core.jobspec.training import Batch, Optimizer, Schedule
from dapo_core.naming import MAX_JOB_NAME, MAX_LABEL


class DAPOJobSpec(SpecModel):
    """What to train and how. Every group except model and data is optional."""

    suspend: bool = Field(
        default=False,
        description="true: save a checkpoint and delete all pods; false: resume from that checkpoint.",
    )
    managed_by: str | None = Field(
        default=None,
        min_length=1,
        max_length=253,
        description="The controller that works on this object; immutable. Of a job that another one manages the "
        "operator touches neither pods nor status; with `kueue.x-k8s.io/multikueue` it asks Kueue to run the job in "
        "another cluster. If not set, or `dapo.io/operator`, the operator does.",
    )
    run_id: str | None = Field(
        default=None,
        max_length=MAX_LABEL,
        pattern=patterns.RUN_ID.regex,
        description="On Kubernetes: the run that the job continues, with its checkpoints, curves and attempts, as when "
        "a deleted job is created again; or the ID of a new run. A run of another namespace is rejected; immutable. If "
        "not set, each DAPOJob is a separate run.",
    )
    model: Model = Field(description="The policy to train.")
    data: Data = Field(description="Prompts for training and validation.")
    reward: Reward = Field(default=Reward(), description="How a response is scored.")
    algorithm: Algorithm = filled("The objective: DAPO's four techniques, each with its own switch.")
    optimizer: Optimizer = filled("AdamW.")
    batch: Batch = filled("What one step samples and trains on.")
    schedule: Schedule = Field(
        default=Schedule(), description="How long to train, and how often to validate, checkpoint and log."
    )
    topology: Topology = Field(default=Topology(), description="The pods of the job, by role.")
    checkpoints: Checkpoints = Field(
        default=Checkpoints(), description="Where checkpoints are stored and which are kept."
    )
    run_policy: RunPolicy = Field(default=RunPolicy(), description="Restarts, deadlines and scheduling.")
    guards: Items[Guard] = Field(
        default=(),
        max_length=len(GUARD_DEFAULTS),
        description="Rules that watch the run, and what to do when they hold. If not set, every rule warns and "
        "NonFinite fails the job; an empty list watches nothing.",
    )
    stores: Stores = Field(
        default=Stores(), description="Where the curves and objects of a job on Kubernetes are stored."
    )
    trackers: Items[TrackerName] = Field(
        default=(),
        max_length=3,
        description="Experiment trackers that every metric is mirrored to, besides the metadata store: one run there "
        "for all attempts. Accounts and addresses come from the environment, on Kubernetes from "
        "the stores' Secret (docs/trackers.md). A tracker that fails never stops training.",
    )
    verl_overrides: FreeObject = Field(
        default={},
        description="Any key of verl's own configuration, nested or dotted. It overrides what the other fields set, "
        "and is checked when the configuration is composed.",
    )

    @model_validator(mode="before")
    @classmethod
    def _fill_defaults(cls, data: Any) -> Any:
        return fill(data) if isinstance(data, dict) else data

    @model_validator(mode="after")
    def _check_rules(self) -> "DAPOJobSpec":
        problems = check({name: getattr(self, name) for name in type(self).model_fields})
        if problems:
            raise ValueError(" ".join(problem.message for problem in problems))
        return self

    def digest(self) -> str:
        """sha256 of what must not change between attempts, by which a checkpoint of another job is recognized."""
        frozen = self.model_dump(mode="json", by_alias=True, include=set(FROZEN_GROUPS))
        return hashlib.sha256(json.dumps(frozen, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


JobName = Annotated[str, StringConstraints(min_length=1, max_length=MAX_JOB_NAME, pattern=patterns.JOB_NAME.regex)]


class Metadata(BaseModel):
    """The part of Kubernetes' object metadata that this platform reads; other fields are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True, alias_generator=to_camel)

    name: JobName = Field(
        description=f"Name of the job, at most {MAX_JOB_NAME} characters, so that its pods' names fit Kubernetes'"
        " limit."
    )
    namespace: Annotated[str, StringConstraints(max_length=MAX_LABEL, pattern=patterns.NAMESPACE.regex)] = Field(
        default="default", description="Namespace of the job on Kubernetes."
    )
    labels: dict[str, str] = Field(default={}, description="Labels; the prefix `dapo.io/` is reserved.")
    annotations: dict[str, str] = Field(default={}, description="Annotations.")


class DAPOJob(SpecModel):
    """One reinforcement-learning run."""

    api_version: Literal["dapo.io/v1alpha1"] = Field(description="Always dapo.io/v1alpha1.")
    kind: Literal["DAPOJob"] = Field(description="Always DAPOJob.")
    metadata: Metadata = Field(description="Name, namespace, labels and annotations.")
    spec: DAPOJobSpec = Field(description="What to train and how.")
