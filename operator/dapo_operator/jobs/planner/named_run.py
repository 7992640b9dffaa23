"""A job that continues a run by its ID (spec.runId): only a run of its own namespace, and one job at a time."""

from typing import Final

from dapo_core.run.reasons import Reason
from dapo_operator.jobs.planner.draft import Draft

ASK_AGAIN_SECONDS: Final = 30.0


def may_use_run(draft: Draft) -> bool:
    """Whether the run that the spec names can be continued now. Otherwise a condition says why not."""
    run, seen = draft.job.named_run, draft.seen
    if seen.run_pods:
        message = (
            f"Waiting until pod {seen.run_pods[0]} is gone ({len(seen.run_pods)} in all): another DAPOJob is training "
            f"run {draft.job.run_id}. Suspend or delete that job."
        )
        draft.set_condition("PodsReady", False, Reason.RUN_IN_USE, message)
        draft.wake(draft.now + ASK_AGAIN_SECONDS)
        return False
    if run is None:
        return True
    if not seen.run_known:
        message = f"Waiting for the metadata store, which knows the attempts and checkpoints of run {run}."
        draft.set_condition("PodsReady", False, Reason.METADATA_UNREACHABLE, message)
        return False
    if seen.run_namespace not in (None, draft.job.namespace):
        message = f"spec.runId: {run} is a run of another namespace; create the job with another runId or none."
        draft.set_condition("SpecAccepted", False, Reason.INVALID_SPEC, message)
        draft.stop("Failed", Reason.INVALID_SPEC, message)
        return False
    return True
