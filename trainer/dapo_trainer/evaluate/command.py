"""`dapo evaluate`. Loading this module imports no engine, so that a mistake is answered at once."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from dapo_core.cli.common_options import HomeOption, JsonOption, MetadataOption
from dapo_core.run.home import Home


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
            "--data", metavar="[NAME=]FILE", help="A set to evaluate on. Repeatable. Left out: the run's own."
        ),
    ] = None,
    k: Annotated[int, typer.Option("--k", min=1, help="Responses sampled to each prompt.")] = 32,
    temperature: Annotated[float, typer.Option(min=0.0, help="Sampling temperature.")] = 1.0,
    top_p: Annotated[float, typer.Option("--top-p", help="Share of probability mass sampled from.")] = 0.7,
    max_prompt_tokens: Annotated[int | None, typer.Option(help="Longest prompt. Left out: the run's.")] = None,
    max_response_tokens: Annotated[int | None, typer.Option(help="Longest response. Left out: the run's.")] = None,
    reward: Annotated[
        str | None, typer.Option(help="math, exact or MODULE:FUNCTION. Left out: the run's, else math.")
    ] = None,
    subset: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="Also tell by the values of a column, such as extra_info.level."),
    ] = None,
    dtype: Annotated[str | None, typer.Option(help="bfloat16, float16 or float32. Left out: the run's.")] = None,
    gpus: Annotated[int | None, typer.Option(min=0, help="GPUs to use. Left out: all of this machine's.")] = None,
    tensor_parallel: Annotated[int | None, typer.Option(min=1, help="GPUs of one engine. Left out: the run's.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the sampling.")] = 0,
    responses: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write every response with its verdict, as Parquet.")
    ] = None,
    home: HomeOption = None,
    metadata: MetadataOption = None,
    as_json: JsonOption = False,
) -> None:
    """Measure a checkpoint or model: mean@k, pass@k and maj@k."""
    from dapo_trainer.evaluate.devices import gpu_count
    from dapo_trainer.evaluate.report import report
    from dapo_trainer.evaluate.request import Choices, Sampling
    from dapo_trainer.evaluate.session import Evaluation

    sampling = Sampling(k, temperature, top_p, seed, max_prompt_tokens, max_response_tokens)
    choices = Choices(sampling, reward, dtype, gpu_count() if gpus is None else gpus, tensor_parallel)
    evaluation = Evaluation(Home.find(home, metadata), choices, subset)
    # Programs read stdout: what goes on is told beside it.
    outcome = evaluation.run(target, data or [], Console(stderr=as_json), responses)
    if as_json:
        print(json.dumps([asdict(row) for row in outcome.rows], indent=1))
    else:
        Console().print(*report(outcome.results), sep="\n")
    evaluation.record(outcome)  # last: a store that fails now takes nothing from what was told
