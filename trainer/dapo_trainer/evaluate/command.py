"""`dapo evaluate`. Loading this module imports no engine, so that mistakes are reported at once."""

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from dapo_core.cli.common_options import HomeOption, JsonOption, MetadataOption
from dapo_core.run.formatting import percent
from dapo_core.run.home import Home

if TYPE_CHECKING:  # numpy is imported when it is needed
    from dapo_trainer.evaluate.statistics import IntervalEstimate, Summary


def evaluate(
    target: Annotated[
        str,
        typer.Argument(
            metavar="TARGET",
            help="A run (its newest checkpoint), RUN@STEP, a checkpoint's URI, or a model: a folder or hf://OWNER/NAME.",
        ),
    ],
    data: Annotated[
        list[str] | None,
        typer.Option(
            "--data", metavar="[NAME=]FILE", help="A set to evaluate on. Repeatable. Default: the run's own sets."
        ),
    ] = None,
    k: Annotated[int, typer.Option("--k", min=1, help="Responses sampled for each prompt.")] = 32,
    temperature: Annotated[float, typer.Option(min=0.0, help="Sampling temperature.")] = 1.0,
    top_p: Annotated[float, typer.Option("--top-p", help="Share of the probability mass that is sampled from.")] = 0.7,
    max_prompt_tokens: Annotated[int | None, typer.Option(help="Longest prompt. Default: the run's.")] = None,
    max_response_tokens: Annotated[int | None, typer.Option(help="Longest response. Default: the run's.")] = None,
    reward: Annotated[
        str | None,
        typer.Option(help="math, exact, MODULE:FUNCTION or FILE.py:FUNCTION. Default: the run's, else math."),
    ] = None,
    subset: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="Also break results down by a column, such as extra_info.level."),
    ] = None,
    dtype: Annotated[str | None, typer.Option(help="bfloat16, float16 or float32. Default: the run's.")] = None,
    gpus: Annotated[int | None, typer.Option(min=0, help="GPUs to use. Default: all of this machine.")] = None,
    tensor_parallel: Annotated[int | None, typer.Option(min=1, help="GPUs of one engine. Default: the run's.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the sampling.")] = 0,
    responses: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write every response with its verdict, as Parquet.")
    ] = None,
    home: HomeOption = None,
    metadata: MetadataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Evaluate a checkpoint or model: mean@k, pass@k and maj@k."""
    from dapo_trainer.evaluate.evaluation import Evaluation
    from dapo_trainer.evaluate.request import Choices, Sampling

    sampling = Sampling(k, temperature, top_p, seed, max_prompt_tokens, max_response_tokens)
    choices = Choices(sampling, reward, dtype, gpu_count() if gpus is None else gpus, tensor_parallel)
    evaluation = Evaluation(Home.find(home, metadata), choices, subset)
    # Programs read stdout: progress goes to stderr.
    outcome = evaluation.run(target, data or [], Console(stderr=as_json), responses)
    if as_json:
        print(json.dumps([asdict(row) for row in outcome.rows], indent=1))
    else:
        Console().print(*report(outcome.results), sep="\n")
    evaluation.record(outcome)  # last: a store that fails now loses nothing of what was printed


def gpu_count() -> int:
    """GPUs that CUDA_VISIBLE_DEVICES lets through, else all of this machine; 0 where it computes on processors."""
    from dapo_trainer.verl_config.placement import detect_device

    if detect_device() == "cpu":
        return 0
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([device for device in visible.split(",") if device.strip()])
    return max(1, len(list(Path("/dev").glob("nvidia[0-9]*"))))


def report(results: Mapping[str, "tuple[Summary, Mapping[str, Summary]]"]) -> Iterator[RenderableType]:
    """A block for each set: its figures, then its subsets."""
    for name, (summary, subsets) in results.items():
        yield Text.assemble((f"\n{name}", "bold"), f"  {summary.prompts} prompts x {summary.samples} samples")
        yield _figures(summary)
        if subsets:
            yield _subsets(subsets)


def interval(estimate: "IntervalEstimate") -> str:
    """`90.1% to 96.0%`, or a dash where there is none."""
    if estimate.low is None or estimate.high is None:
        return "-"
    return f"{percent(estimate.low)} to {percent(estimate.high)}"


def _figures(summary: "Summary") -> Table:
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


def _subsets(subsets: "Mapping[str, Summary]") -> Table:
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
