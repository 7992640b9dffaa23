"""The figures of an evaluation as people read them. Pure."""

from collections.abc import Iterator, Mapping

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from dapo_core.run.formatting import percent
from dapo_trainer.evaluate.statistics import Estimate, Summary


def report(results: Mapping[str, tuple[Summary, Mapping[str, Summary]]]) -> Iterator[RenderableType]:
    """A block for each set: its figures, then its subsets."""
    for name, (summary, subsets) in results.items():
        yield Text.assemble((f"\n{name}", "bold"), f"  {summary.prompts} prompts x {summary.samples} samples")
        yield _figures(summary)
        if subsets:
            yield _subsets(subsets)


def interval(estimate: Estimate) -> str:
    """`90.1% to 96.0%`, or a dash where there is none."""
    if estimate.low is None or estimate.high is None:
        return "-"
    return f"{percent(estimate.low)} to {percent(estimate.high)}"


def _figures(summary: Summary) -> Table:
    k = summary.samples
    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading in ("", "value", "95% interval over prompts"):
        table.add_column(heading, justify="right" if heading == "value" else "left")
    error = summary.sampling_error
    note = "" if error is None else f"; ± {percent(error)} from sampling alone"
    table.add_row(f"mean@{k}", percent(summary.mean.value), f"{interval(summary.mean)}{note}")
    for draws, estimate in summary.pass_at.items():
        if draws > 1:
            table.add_row(f"pass@{draws}", percent(estimate.value), interval(estimate))
    table.add_row(f"maj@{k}", percent(summary.majority.value), interval(summary.majority))
    lengths = summary.lengths
    spread = f"median {lengths.median:.0f}, 95th percentile {lengths.p95:.0f}, longest {lengths.longest}"
    table.add_row("length", f"{lengths.mean:.1f}", f"tokens; {spread}")
    table.add_row("cut off", percent(summary.truncated), "at the limit of tokens")
    table.add_row("no answer", percent(summary.unstated), _failed(summary.failures))
    return table


def _failed(failures: int) -> str:
    return f"{failures} checks failed and count as wrong" if failures else ""


def _subsets(subsets: Mapping[str, Summary]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    k = next(iter(subsets.values())).samples
    for heading in ("subset", "prompts", f"mean@{k}", "95% interval", f"pass@{k}", f"maj@{k}", "length", "cut off"):
        table.add_column(heading, justify="left" if heading in ("subset", "95% interval") else "right")
    for name, one in subsets.items():
        table.add_row(
            name,
            str(one.prompts),
            percent(one.mean.value),
            interval(one.mean),
            percent(one.pass_at[k].value),
            percent(one.majority.value),
            f"{one.lengths.mean:.1f}",
            percent(one.truncated),
        )
    return table
