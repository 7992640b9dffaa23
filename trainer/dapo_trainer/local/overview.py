"""The view of a run that is about to start. Pure."""

from urllib.parse import unquote, urlsplit

from dapo_core.jobspec import DAPOJob
from dapo_core.run.progress import Cadence
from dapo_trainer.local.view_model import View


def first_view(run_id: str, job: DAPOJob, now: float) -> View:
    """What the job itself says: model, mode, steps and limits."""
    spec = job.spec
    return View(
        run_id=run_id,
        model=model_name(spec.model.source),
        mode=spec.topology.mode,
        started_at=now,
        total_steps=spec.schedule.steps,
        cadence=Cadence.of(spec),
        max_restarts=spec.run_policy.max_restarts,
        max_response_tokens=spec.batch.max_response_tokens,
        phase_since=now,
    )


def model_name(source: str) -> str:
    """`owner/name` of a hub's model, the last folder of any other."""
    if source.startswith("hf://"):
        return source.removeprefix("hf://")
    return unquote(urlsplit(source).path).rstrip("/").rsplit("/", 1)[-1] or source
