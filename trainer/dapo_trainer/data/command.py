"""`dapo data`: prepares prompts before a run. Loading this module imports neither DuckDB nor transformers."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from dapo_core.errors import Problem, SpecError

if TYPE_CHECKING:
    from dapo_trainer.data.model_files import TokenCounter
    from dapo_trainer.data.source_tables import SourceFile

TOKEN_LIMIT: Final = 2048  # the default of a job's data.maxPromptTokens
data = typer.Typer(no_args_is_help=True)


@dataclass(frozen=True)
class PublishedDataset:
    """`source`: the file as its authors published it; `integers`: prompts with any other answer are dropped."""

    source: str
    integers: bool = True


PUBLISHED: Final = {
    # 1.79 million rows of some 17,000 prompts (the paper's section 3.5).
    "dapo-math-17k": PublishedDataset("hf://datasets/BytedTsinghua-SIA/DAPO-Math-17k/data/dapo-math-17k.parquet"),
    # 30 problems, 32 rows each.
    "aime-2024": PublishedDataset("hf://datasets/BytedTsinghua-SIA/AIME-2024/data/aime-2024.parquet"),
}


class AnswerKind(StrEnum):
    integer = "integer"
    any = "any"


class OnOverlap(StrEnum):
    refuse = "refuse"
    drop = "drop"
    keep = "keep"


@data.callback()
def root() -> None:
    """Prepare datasets for training and validation."""


@data.command()
def prepare(
    name: Annotated[str, typer.Argument(help=f"{', '.join(PUBLISHED)}, or a name of your own for other data.")],
    out: Annotated[Path, typer.Option("--out", help="Parquet file to write; the report is written beside it.")],
    source: Annotated[
        list[str] | None,
        typer.Option(
            "--source", help="Parquet or JSON-lines file: a path, file:///, s3:// or hf://datasets/ORG/NAME/FILE."
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option("--model", help="Count tokens with this model's tokenizer: a folder, file:///, s3:// or hf://."),
    ] = None,
    max_prompt_tokens: Annotated[
        int | None,
        typer.Option("--max-prompt-tokens", min=1, help=f"Drop longer prompts. Default: {TOKEN_LIMIT:,} with --model."),
    ] = None,
    validation: Annotated[
        list[str] | None,
        typer.Option("--validation", help="File whose prompts must not occur in the output. Repeatable."),
    ] = None,
    overlap: Annotated[
        OnOverlap, typer.Option("--overlap", help="What to do with prompts that occur in a validation file.")
    ] = OnOverlap.refuse,
    prompt_column: Annotated[
        str, typer.Option(help="Column with the prompt, as text or chat messages; a dot selects a nested field.")
    ] = "prompt",
    answer_column: Annotated[str, typer.Option(help="Column with the correct answer.")] = "reward_model.ground_truth",
    answers: Annotated[
        AnswerKind | None,
        typer.Option(
            "--answers",
            help=f"integer drops prompts with any other answer, as the paper does. Default: integer for "
            f"{' and '.join(PUBLISHED)}, any for other data.",
        ),
    ] = None,
    template: Annotated[
        str | None,
        typer.Option("--template", help="`paper`, or a text with {prompt}: the instruction around each prompt."),
    ] = None,
) -> None:
    """Write each prompt once, with the one answer that its copies agree on, in verl's chat schema."""
    _check_options(name, out, source, model, max_prompt_tokens, template)
    from dapo_trainer.data.preparation import PreparationRequest
    from dapo_trainer.data.preparation import prepare as run
    from dapo_trainer.data.prompts import PAPER_TEMPLATE
    from dapo_trainer.data.source_tables import Columns

    published = PUBLISHED.get(name)
    sources = source or ([published.source] if published is not None else [])
    request = PreparationRequest(
        name=name,
        sources=[_file(place, "--source") for place in sources],
        out=out,
        columns=Columns(prompt_column, answer_column),
        integers=published is not None and published.integers if answers is None else answers is AnswerKind.integer,
        template=PAPER_TEMPLATE if template == "paper" else template,
        token_limit=None if model is None else max_prompt_tokens or TOKEN_LIMIT,
        count=None if model is None else _token_counter(model),
        validation=[_file(place, "--validation") for place in validation or ()],
        on_overlap=overlap.value,
    )
    report = run(request)
    typer.echo("\n".join([*report.lines(), "", f"{out} written, {request.report_file} beside it"]))
    if report.conflicting:
        typer.echo(f"{request.conflicts_file} lists the prompts with different answers.")
    if report.copies[0] == report.copies[1] > 1:
        typer.echo(
            f"Each prompt has {report.copies[0]} rows: for validation, set samplesPerPrompt: {report.copies[0]}."
        )


def _file(place: str, option: str) -> "SourceFile":
    """A path or URI as a local file. Raises DataError."""
    from dapo_trainer.data.source_tables import SourceFile
    from dapo_trainer.data.sources import data_file

    uri = place if "://" in place else Path(place).absolute().as_uri()
    return SourceFile(place, data_file(uri, option))


def _token_counter(model: str) -> "TokenCounter":
    """Raises ModelError when the model has no tokenizer with a chat template."""
    from dapo_trainer.data.model_files import token_counter, tokenizer_folder

    return token_counter(tokenizer_folder(model, "--model"), "--model")


def _check_options(
    name: str,
    out: Path,
    source: list[str] | None,
    model: str | None,
    max_prompt_tokens: int | None,
    template: str | None,
) -> None:
    """Raises SpecError with every mistake in the options."""
    problems = []
    if not source and name not in PUBLISHED:
        known = " and ".join(PUBLISHED)
        problems.append(Problem("--source", f"--source is missing: only {known} have a default, {name} has none."))
    if out.suffix != ".parquet":
        problems.append(Problem("--out", f"--out is {out}: use a file name that ends in .parquet."))
    if max_prompt_tokens is not None and model is None:
        problems.append(
            Problem(
                "--max-prompt-tokens",
                f"--max-prompt-tokens is {max_prompt_tokens}, but there is no tokenizer to count with: add --model.",
            )
        )
    if template is not None and template != "paper" and "{prompt}" not in template:
        problems.append(
            Problem("--template", f"--template is {template!r}: use paper, or a text that contains {{prompt}}.")
        )
    if problems:
        raise SpecError(problems)
