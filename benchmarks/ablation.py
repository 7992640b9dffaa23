"""The six rows of the paper's Table 1 on the arithmetic task, each with the same budget of generated tokens.

    python benchmarks/ablation.py --page docs/ablation.md --picture docs/images/ablation.svg

Every row and seed is one `dapo run` of examples/arithmetic.yaml with other settings; rows of one seed begin with the
same model and data. A run is stopped at the first validation after its budget is spent. What is finished is written to
`{folder}/results` and not done again; a row that was cut off begins anew.

Prints the table and dynamic sampling's price: tokens generated for a token trained on, and seconds a step, over
training.
"""

import argparse
import json
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dapo_core.db import CurvePoint, MetadataReader, open_reader
from dapo_core.errors import StoreError
from dapo_core.run import metrics

ROOT = Path(__file__).parents[1]
JOB = ROOT / "examples" / "arithmetic.yaml"
VALIDATION = "val-core/arithmetic/acc/mean@8"
GOAL = 0.8
VALIDATE_EVERY = 3
# More steps than any row can make of its budget.
STEPS = 100_000
POLL_SECONDS = 0.5


@dataclass(frozen=True)
class Row:
    """One row: its name, the paper's result, and what it adds to the row before (fields of `algorithm`)."""

    name: str
    paper: int
    adds: Sequence[str]


ROWS = (
    Row("naive GRPO", 30, ()),
    Row("+ overlong filtering", 36, ("overlong.filter=true",)),
    Row("+ clip-higher", 38, ("clipHigh=0.28",)),
    Row("+ soft overlong punishment", 41, ("overlong.penalty={expectedTokens: 32, cacheTokens: 8}",)),
    Row("+ token-level loss", 42, ("lossAggregation=TokenMean",)),
    Row("+ dynamic sampling (DAPO)", 50, ("dynamicSampling.enabled=true",)),
)


def settings(number: int) -> list[str]:
    """Row `number` (from 1) as fields of the job; the rows add up."""
    fields = ["preset=grpo", "overlong={}"] + [added for row in ROWS[:number] for added in row.adds]
    return [f"algorithm.{field}" for field in fields]


@dataclass(frozen=True)
class Result:
    """One run. Curves are [step, tokens generated until then, value], times in seconds of a step, without start-up."""

    row: int
    seed: int
    token_budget: int
    steps: int
    accuracy: list[tuple[int, int, float]]
    generated: list[int]
    trained: list[int]
    seconds: list[float]
    generation_seconds: list[float]
    entropy: list[float]
    length: list[float]
    truncated: list[float]

    @property
    def tokens(self) -> int:
        return sum(self.generated)

    @property
    def final(self) -> float:
        """At the budget, between the last validation before it and the first after it: rows overshoot unequally."""
        (_, before, low), (_, after, high) = self.accuracy[-2:]
        return low + (high - low) * (self.token_budget - before) / (after - before)

    @property
    def late(self) -> float:
        """The mean of the validations in the last third of the budget: one alone is a draw of 512 answers."""
        return statistics.mean(value for _, tokens, value in self.accuracy if tokens * 3 >= self.token_budget * 2)

    def at(self, step: int) -> float:
        """At a step that was validated."""
        return next(value for at, _, value in self.accuracy if at == step)

    @property
    def reached(self) -> tuple[int, int] | None:
        """Step and tokens of the first validation at the goal, None where it was not reached."""
        return next(((step, tokens) for step, tokens, value in self.accuracy if value >= GOAL), None)


# ---- running -----------------------------------------------------------------------------------------------------


def model_of(seed: int) -> Path:
    """The seed's model and data; made when they are not there."""
    folder = ROOT / ".dapo" / ("demo" if seed == 0 else f"demo-{seed}")
    subprocess.run([sys.executable, "-m", "dapo_trainer.demo.prepare", str(folder), "--seed", str(seed)], check=True)
    return folder


def command(number: int, seed: int, home: Path) -> list[str]:
    made = model_of(seed)
    validation = f"{{name: arithmetic, source: {made / 'validation.parquet'}, samplesPerPrompt: 8, topP: 1.0}}"
    chosen = [
        *settings(number),
        f"data.seed={seed}",
        f"model.source={made / 'model'}",
        f"data.train=[{{source: {made / 'train.parquet'}}}]",
        f"data.validation=[{validation}]",
        f"schedule={{steps: {STEPS}, validateEvery: {VALIDATE_EVERY}, checkpointEvery: 0, logSamplesEvery: 0}}",
        "guards=[]",
        f"checkpoints={{uri: {(home / 'store').as_uri()}, keepLast: 1}}",
    ]
    dapo = str(Path(sys.executable).parent / "dapo")
    options = [part for field in chosen for part in ("--set", field)]
    return [dapo, "run", str(JOB), "--name", f"row-{number}-seed-{seed}", "--quiet", "--home", str(home), *options]


def curve(reader: MetadataReader, run: str, metric: str) -> list[CurvePoint]:
    return [point for point in reader.curve(run, metric) if point.value is not None]


def spent(reader: MetadataReader, run: str) -> tuple[int, int]:
    """Tokens generated so far, and those that had been at the last validation."""
    generated = curve(reader, run, metrics.TOKENS_GENERATED)
    validated = max((point.step for point in curve(reader, run, VALIDATION)), default=0)
    return (
        int(sum(point.number for point in generated)),
        int(sum(point.number for point in generated if point.step <= validated)),
    )


def work(number: int, seed: int, budget: int, folder: Path) -> Result:
    """Train one row until a validation finds the budget spent. Raises RuntimeError when the run ends before that."""
    home = folder / "runs" / f"row-{number}-seed-{seed}-{int(time.time())}"
    with (folder / f"row-{number}-seed-{seed}.log").open("w") as log:
        process = subprocess.Popen(command(number, seed, home), stdout=log, stderr=subprocess.STDOUT)
        try:
            while process.poll() is None and not _done(home, budget):
                time.sleep(POLL_SECONDS)
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)  # a clean stop
            code = process.wait()
    if not _done(home, budget):
        raise RuntimeError(f"row {number}, seed {seed} ended with {code} before its budget was spent: see {log.name}")
    return measured(home, number, seed, budget)


def _reader(home: Path) -> MetadataReader:
    return open_reader(f"sqlite:///{home / 'dapo.db'}")


def _run(home: Path) -> str:
    return next(path.parent.name for path in home.glob("*/job.json"))


def _done(home: Path, budget: int) -> bool:
    try:
        return spent(_reader(home), _run(home))[1] >= budget
    except (StoreError, StopIteration):
        return False  # the run has not begun


def measured(home: Path, number: int, seed: int, budget: int) -> Result:
    reader, run = _reader(home), _run(home)
    generated = {point.step: int(point.number) for point in curve(reader, run, metrics.TOKENS_GENERATED)}
    until = 0
    at: dict[int, int] = {0: 0}
    for step, tokens in sorted(generated.items()):
        until += tokens
        at[step] = until
    accuracy = [(p.step, at[p.step], p.number) for p in curve(reader, run, VALIDATION)]
    # The step that was underway at the stop belongs to no validation.
    end = next(step for step, tokens, _ in accuracy if tokens >= budget)

    def values(metric: str) -> list[float]:
        return [point.number for point in curve(reader, run, metric) if 0 < point.step <= end]

    return Result(
        row=number,
        seed=seed,
        token_budget=budget,
        steps=end,
        accuracy=[point for point in accuracy if point[0] <= end],
        generated=[int(value) for value in values(metrics.TOKENS_GENERATED)],
        trained=[int(value) for value in values(metrics.TOKENS_TRAINED)],
        seconds=values("timing_s/step"),
        generation_seconds=values("timing_s/gen"),
        entropy=values(metrics.ENTROPY),
        length=values(metrics.LENGTH_MEAN),
        truncated=values(metrics.TRUNCATED),
    )


def results(
    rows: Sequence[int], seeds: Sequence[int], budget: int, folder: Path, finished: bool = False
) -> Iterator[Result]:
    """Seed by seed, so that a table of all rows stands early; what is on disk is not run again, what is not is not run
    if only what is `finished` is asked for."""
    (folder / "results").mkdir(parents=True, exist_ok=True)
    for seed in seeds:
        for number in rows:
            file = folder / "results" / f"row-{number}-seed-{seed}-tokens-{budget}.json"
            if finished and not file.exists():
                continue
            if not file.exists():
                began = time.monotonic()
                found = work(number, seed, budget, folder)
                scratch = file.with_suffix(".part")
                scratch.write_text(json.dumps(asdict(found)))
                scratch.replace(file)
                print(f"{file.stem}: {found.final:.1%} after {time.monotonic() - began:.0f} s", file=sys.stderr)
            yield read(file)


def read(file: Path) -> Result:
    content: dict[str, Any] = json.loads(file.read_text())
    return Result(**{**content, "accuracy": [(int(s), int(t), float(v)) for s, t, v in content["accuracy"]]})


# ---- telling -----------------------------------------------------------------------------------------------------


def table(found: Sequence[Result], rows: Sequence[int]) -> Iterator[str]:
    common = shared_step(found)
    yield (
        "| row | paper | seeds | accuracy | spread | to the row before, each seed | over the last third | "
        f"at step {common} | steps | to 80 %: steps | tokens |"
    )
    yield "|---|---|---|---|---|---|---|---|---|---|---|"
    for number in rows:
        mine = [result for result in found if result.row == number]
        if not mine:
            continue
        final, row = [result.final for result in mine], ROWS[number - 1]
        spread = f"{statistics.stdev(final):.1%}" if len(final) > 1 else "-"
        steps, tokens = _to_the_goal(mine)
        yield (
            f"| {number} {row.name} | {row.paper} | {len(mine)} | {statistics.mean(final):.1%} | {spread} | "
            f"{_against_the_row_before(found, number)} | {statistics.mean(result.late for result in mine):.1%} | "
            f"{statistics.mean(result.at(common) for result in mine):.1%} | "
            f"{statistics.mean(result.steps for result in mine):.0f} | {steps} | {tokens} |"
        )


def shared_step(found: Sequence[Result]) -> int:
    """The last step at which every run was validated."""
    return max(set.intersection(*({step for step, _, _ in result.accuracy} for result in found)))


def _to_the_goal(mine: Sequence[Result]) -> tuple[str, str]:
    """Mean steps, and mean tokens in thousands, of the seeds that got there."""
    there = [result.reached for result in mine if result.reached is not None]
    if not there:
        return "not reached", "-"
    missing = f" ({len(mine) - len(there)} of {len(mine)} did not)" if len(there) < len(mine) else ""
    tokens = statistics.mean(tokens for _, tokens in there) / 1000
    return f"{statistics.mean(step for step, _ in there):.0f}{missing}", f"{tokens:.0f} thousand"


def _against_the_row_before(found: Sequence[Result], number: int) -> str:
    """In points of accuracy, seed by seed: rows of one seed begin with the same model and data."""
    before = {result.seed: result.final for result in found if result.row == number - 1}
    mine = sorted((r for r in found if r.row == number and r.seed in before), key=lambda result: result.seed)
    return ", ".join(f"{100 * (result.final - before[result.seed]):+.1f}" for result in mine) or "-"


def price(found: Sequence[Result]) -> Iterator[str]:
    """Rows 5 and 6, which differ in dynamic sampling alone, by fifths of the token budget."""
    yield "| of the budget | generated for a token trained on | seconds a step: with | without | of these generating |"
    yield "|---|---|---|---|---|"
    parts = [(f"{fifth * 20} to {fifth * 20 + 20} %", range(fifth, fifth + 1)) for fifth in range(5)]
    for name, fifths in [*parts, ("all of it", range(5))]:
        with_, without = (_steps([r for r in found if r.row == number], fifths) for number in (6, 5))
        if not with_ or not without:
            return
        ratio = sum(g for g, _, _, _ in with_) / max(1, sum(t for _, t, _, _ in with_))
        seconds, plain = (statistics.median(s for _, _, s, _ in steps) for steps in (with_, without))
        shares = [statistics.median(g for _, _, _, g in steps) for steps in (with_, without)]
        yield (f"| {name} | {ratio:.2f} | {seconds:.2f} | {plain:.2f} | {shares[0]:.2f} and {shares[1]:.2f} |")


def _steps(found: Sequence[Result], fifths: range) -> list[tuple[int, int, float, float]]:
    """Steps of some fifths of the budget: tokens generated and trained on, seconds in all and generating."""
    steps = []
    for result in found:
        until = 0
        columns = zip(result.generated, result.trained, result.seconds, result.generation_seconds, strict=True)
        for generated, trained, seconds, generating in columns:
            if until * 5 // result.token_budget in fifths:
                steps.append((generated, trained, seconds, generating))
            until += generated
    return steps


BEGIN, END = "<!-- results of benchmarks/ablation.py -->", "<!-- end of the results -->"


def write(page: Path, told: str) -> None:
    """Put the results between the page's two marks."""
    before, _, rest = page.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{BEGIN}\n\n{told}\n\n{END}{after}")


def numbers(text: str) -> list[int]:
    """`1,3-5` as [1, 3, 4, 5]."""
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=numbers, default=numbers("1-6"), help="such as 1,5-6 (default: all)")
    parser.add_argument("--seeds", type=numbers, default=numbers("0-2"), help="default: 0-2")
    parser.add_argument("--token-budget", type=int, default=360_000, help="response tokens that each run generates")
    parser.add_argument("--folder", type=Path, default=ROOT / ".dapo" / "ablation", help="runs and finished results")
    parser.add_argument("--page", type=Path, help="a page whose results are replaced, such as docs/ablation.md")
    parser.add_argument("--picture", type=Path, help="where to draw the figure (SVG or PNG)")
    parser.add_argument("--finished", action="store_true", help="run nothing; tell what is finished")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends the run that is underway as Ctrl-C does
    budget, folder = arguments.token_budget, arguments.folder.resolve()
    found = list(results(arguments.rows, arguments.seeds, budget, folder, arguments.finished))
    told = "\n".join([*table(found, arguments.rows), "", *price(found)])
    print(told)
    if arguments.page is not None:
        write(arguments.page, told)
    if arguments.picture is not None:
        from ablation_figure import draw  # matplotlib takes a second to import

        draw(found, [row.name for row in ROWS], GOAL, arguments.picture)


if __name__ == "__main__":
    main()
