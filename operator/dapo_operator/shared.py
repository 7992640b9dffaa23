"""What the reconcilers of all jobs share, and which of them starts an attempt of a run that jobs have named."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Final, Literal, Protocol

from dapo_operator.children import Children, JobKey
from dapo_operator.executor import Executor, LeftoverPodsError
from dapo_operator.jobs.job_objects import Site
from dapo_operator.kube.objects import ObjectReference
from dapo_operator.kube.rate_limit import FairPlaces
from dapo_operator.metadata_store import MetadataStore
from dapo_operator.node_cache import NodeCache
from dapo_operator.telemetry.instrumentation import Telemetry

# Jobs reconciled at the same time: more could not send requests anyway, and each holds the bodies of all its pods.
CONCURRENT: Final = 32


class EventSink(Protocol):
    """Where a job's events are posted."""

    def post(self, about: ObjectReference, kind: Literal["Normal", "Warning"], reason: str, message: str) -> None:
        """Queue an Event; never raises."""
        ...


@dataclass(frozen=True)
class Shared:
    """What the reconcilers of all jobs share. `now` is the API server's clock (Unix seconds)."""

    executor: Executor
    children: Children
    store: MetadataStore
    events: EventSink
    site: Site
    now: Callable[[], float]
    telemetry: Telemetry
    nodes: NodeCache = field(default_factory=lambda: NodeCache(lambda name: None))
    # Of what must not happen to all jobs at once.
    random: Random = field(default_factory=Random)
    # Runs that a job has named, each with the job that is starting an attempt of it, if one is.
    named_runs: dict[str, JobKey | None] = field(default_factory=dict)
    # A job of a namespace waits for other jobs of it, not for those of others.
    slots: FairPlaces = field(default_factory=lambda: FairPlaces(CONCURRENT, one_each=True))

    @contextmanager
    def starting(self, run_id: str, key: JobKey) -> Iterator[None]:
        """Between the question whether another job has pods of a run and the first pod of this one, no other job may
        ask. Raises LeftoverPodsError when one has asked."""
        if run_id not in self.named_runs:
            yield
            return
        if (other := self.named_runs[run_id]) is not None:
            raise LeftoverPodsError(f"{'/'.join(other)} is starting an attempt of run {run_id}.")
        self.named_runs[run_id] = key
        try:
            yield
        finally:
            self.named_runs[run_id] = None
