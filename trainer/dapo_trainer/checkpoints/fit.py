"""Whether a checkpoint fits the job that wants to go on from it: asked of the manifest, before anything is loaded."""

from dapo_core.errors import CheckpointError, Problem, SpecError
from dapo_core.run.checkpoint import Manifest


def check_digest(manifest: Manifest, spec_digest: str | None) -> None:
    """Raises CheckpointError when the checkpoint is of a job with another model, data or algorithm."""
    if spec_digest not in (None, manifest.spec_digest):
        raise CheckpointError(
            f"The checkpoint of step {manifest.step} was written by another job (digest {manifest.spec_digest[:12]}, "
            f"now {str(spec_digest)[:12]}): undo the change of the model, data or algorithm, or start a new run."
        )


def check_ranks(manifest: Manifest, ranks: int | None) -> None:
    """Raises SpecError when `ranks` FSDP ranks can not read the checkpoint: verl's files are those of its writers."""
    if ranks is None or manifest.ranks in (None, ranks):
        return
    name = f"{manifest.run_id}@{manifest.step}"
    raise SpecError(
        [
            Problem(
                "spec.topology.trainer",
                f"spec.topology.trainer makes {ranks} FSDP ranks, but the checkpoint of step {manifest.step} is of "
                f"{manifest.ranks}: go back to {manifest.ranks}, or start a new run from its weights, with "
                f"`dapo checkpoints export {name} FOLDER` and spec.model.source: FOLDER (the optimizer begins anew).",
            )
        ]
    )
