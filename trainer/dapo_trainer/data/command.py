"""`dapo data`: what is done to prompts before a run."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dapo_core.errors import Problem, SpecError
from dapo_trainer.data.published import PUBLISHED

if TYPE_CHECKING:
    from dapo_trainer.data.tables import SourceFile

TOKEN_LIMIT = 2048  # data.maxPromptTokens of a job that names none
data = typer.Typer(no_args_is_help=True)


class Answers(StrEnum):
    integer = "integer"
    any = "any"


class OnOverlap(StrEnum):
    refuse = "refuse"
    drop = "drop"
    keep = "keep"


@data.callback()
def root() -> None:
    """Prepare data sets for training and validation."""


@data.command()
def prepare(
    name: Annotated[str, typer.Argument(help=f"{', '.join(PUBLISHED)}, or a name of your own for other data.")],
    out: Annotated[Path, typer.Option("--out", help="Parquet file to write; the report lies beside it.")],
    source: Annotated[
        list[str] | None,
        typer.Option(
            "--source", help="Parquet or JSON-lines file: a path, file:///, s3:// or hf://datasets/ORG/NAME/FILE."
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", help="Count tokens as this model does: a folder, file:///, s3:// or hf://.")
    ] = None,
    max_prompt_tokens: Annotated[
        int | None,
        typer.Option("--max-prompt-tokens", min=1, help=f"Drop longer prompts. Default: {TOKEN_LIMIT:,} with --model."),
    ] = None,
    validation: Annotated[
        list[str] | None, typer.Option("--validation", help="File whose prompts must not occur. Repeatable.")
    ] = None,
    overlap: Annotated[OnOverlap, typer.Option("--overlap", help="What to do where they do.")] = OnOverlap.refuse,
    prompt_column: Annotated[str, typer.Option(help="Column of text or of chat messages; a dot leads into it.")] = (
        "prompt"
    ),
    answer_column: Annotated[str, typer.Option(help="Column of the right answer.")] = "reward_model.ground_truth",
    answers: Annotated[
        Answers | None,
        typer.Option("--answers", help="integer drops prompts with any other answer, as the paper does."),
    ] = None,
    template: Annotated[
        str | None, typer.Option("--template", help="`paper`, or a text with {prompt}: what to ask around each prompt.")
    ] = None,
) -> None:
    """Write each prompt once, with the one answer that its copies agree on, in verl's chat schema."""
    _refuse(name, out, source, model, max_prompt_tokens, template)
    from dapo_trainer.data.prepare import Request
    from dapo_trainer.data.prepare import prepare as run
    from dapo_trainer.data.prompts import PAPER_TEMPLATE
    from dapo_trainer.data.tables import Columns
    from dapo_trainer.data.tokens import token_counter, tokenizer_folder

    known = PUBLISHED.get(name)
    sources = source or ([known.source] if known is not None else [])
    request = Request(
        name=name,
        sources=[_file(place, "--source") for place in sources],
        out=out,
        columns=Columns(prompt_column, answer_column),
        integers=known is not None and known.integers if answers is None else answers is Answers.integer,
        template=PAPER_TEMPLATE if template == "paper" else template,
        token_limit=None if model is None else max_prompt_tokens or TOKEN_LIMIT,
        count=None if model is None else token_counter(tokenizer_folder(model, "--model"), "--model"),
        validation=[_file(place, "--validation") for place in validation or ()],
        on_overlap=overlap.value,
    )
    report = run(request)
    typer.echo("\n".join([*report.lines(), "", f"{out} written, {request.report_file} beside it"]))
    if report.conflicting:
        typer.echo(f"{request.conflicts_file} lists the prompts with different answers.")
    if report.copies[0] == report.copies[1] > 1:
        typer.echo(f"Each was there {report.copies[0]} times: for validation, samplesPerPrompt: {report.copies[0]}.")


def _file(place: str, option: str) -> "SourceFile":
    """A path or URI as a local file. Raises DataError."""
    from dapo_trainer.data.sources import data_file
    from dapo_trainer.data.tables import SourceFile

    uri = place if "://" in place else Path(place).absolute().as_uri()
    return SourceFile(place, data_file(uri, option))


def _refuse(
    name: str,
    out: Path,
    source: list[str] | None,
    model: str | None,
    max_prompt_tokens: int | None,
    template: str | None,
) -> None:
    """Raises SpecError with every mistake in the options."""
    wrong = []
    if not source and name not in PUBLISHED:
        known = " and ".join(PUBLISHED)
        wrong.append(Problem("--source", f"--source is missing: only {known} have one of their own, {name} has none."))
    if out.suffix != ".parquet":
        wrong.append(Problem("--out", f"--out is {out}: name a file that ends in .parquet."))
    if max_prompt_tokens is not None and model is None:
        wrong.append(
            Problem(
                "--max-prompt-tokens",
                f"--max-prompt-tokens is {max_prompt_tokens}, but no tokenizer is named: add --model.",
            )
        )
    if template is not None and template != "paper" and "{prompt}" not in template:
        wrong.append(
            Problem("--template", f"--template is {template!r}: write paper, or a text that holds {{prompt}}.")
        )
    if wrong:
        raise SpecError(wrong)
