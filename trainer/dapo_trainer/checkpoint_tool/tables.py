"""Tables of `dapo checkpoints`. Pure."""

from collections.abc import Mapping, Sequence

from rich.table import Table

from dapo_core.run.checkpoint import Manifest, RetentionVerdict
from dapo_core.run.formatting import ago, number, size
from dapo_trainer.checkpoints.leftovers import Leftover


def checkpoints_table(manifests: Sequence[Manifest], why: Mapping[int, str], metric: str | None, now: float) -> Table:
    """Committed checkpoints, newest first; `why` each is kept, by step."""
    table = _table("step", "attempt", "size", "files", "committed", *([metric] if metric else []), "Kept")
    for manifest in manifests:
        value = [number(manifest.metrics.get(metric))] if metric else []
        table.add_row(
            str(manifest.step),
            str(manifest.attempt),
            size(manifest.size_bytes),
            str(len(manifest.files)),
            ago(manifest.created_at, now),
            *value,
            why.get(manifest.step, ""),
        )
    return table


def verdicts_table(verdicts: Sequence[RetentionVerdict], manifests: Mapping[int, Manifest]) -> Table:
    """What becomes of each checkpoint."""
    table = _table("step", "size", "Decision")
    for verdict in verdicts:
        table.add_row(str(verdict.step), size(manifests[verdict.step].size_bytes), verdict.why)
    return table


def leftovers_table(found: Sequence[tuple[str, Leftover]], now: float) -> Table:
    """What no checkpoint needs, by run."""
    table = _table("Run", "What", "objects", "size", "last change")
    for run_id, leftover in found:
        newest = max(info.modified for info in leftover.objects)
        what = {
            "TornUpload": f"upload of step {leftover.step} that never ended",
            "Unused": "shared files that no checkpoint names",
            "UnknownRun": "all of a run that is not on record",
        }[leftover.kind]
        table.add_row(run_id, what, str(len(leftover.objects)), size(leftover.size_bytes), ago(newest, now))
    return table


def _table(*headings: str) -> Table:
    """Headings in lower case are of numbers, which stand at the right."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading in headings:
        table.add_column(heading, justify="right" if heading[:1].islower() else "left", overflow="fold")
    return table
