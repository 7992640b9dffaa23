"""The six rows of the paper's Table 1 on the arithmetic task, each with the same budget of generated tokens.

    python benchmarks/ablation.py --page docs/ablation.md --picture docs/images/ablation.png

Each row and seed is one `dapo run` of examples/arithmetic.yaml with other settings; rows of one seed start from the
same model and data. A run is stopped at the first validation after its budget is spent. Finished runs are written to
`{folder}/results` and not repeated; an interrupted run starts over.

The first row of the first seed is run three times, to see what changes when nothing is changed.

Prints the table with paired differences and their intervals, the repeats, the sentences that an interval supports, and
the cost of dynamic sampling: tokens generated per token trained on, and seconds per step, over training.
"""

import argparse
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from ablation_comparison import repeats, sentences, table
from ablation_results import ROWS, Result, price, read, write

from dapo_core.db import CurvePoint, MetadataReader, open_reader
from dapo_core.errors import StoreError
from dapo_core.run import metrics

ROOT = Path(__file__).parents[1]
JOB = ROOT / "examples" / "arithmetic.yaml"
VALIDATION = "val-core/arithmetic/acc/mean@8"
VALIDATE_EVERY = 3
# More steps than any row can make of its budget.
STEPS = 100_000
POLL_SECONDS = 0.5


def settings(number: int) -> list[str]:
    """Row `number` (from 1) as fields of the job; the rows add up."""
    fields = ["preset=grpo", "overlong={}"] + [added for row in ROWS[:number] for added in row.adds]
    return [f"algorithm.{field}" for field in fields]


def model_of(seed: int) -> Path:
    """The folder with the seed's model and data; created if it has none."""
    folder = ROOT / ".dapo" / ("demo" if seed == 0 else f"demo-{seed}")
    subprocess.run([sys.executable, "-m", "dapo_trainer.demo.prepare", str(folder), "--seed", str(seed)], check=True)
    return folder


def name_of(number: int, seed: int, replicate: int) -> str:
    """Of a run and its files; the first of its replicates has no number."""
    return f"row-{number}-seed-{seed}" + (f"-replicate-{replicate}" if replicate else "")


def command(number: int, seed: int, home: Path) -> list[str]:
    folder = model_of(seed)
    validation = f"{{name: arithmetic, source: {folder / 'validation.parquet'}, samplesPerPrompt: 8, topP: 1.0}}"
    chosen = [
        *settings(number),
        f"data.seed={seed}",
        f"model.source={folder / 'model'}",
        f"data.train=[{{source: {folder / 'train.parquet'}}}]",
        f"data.validation=[{validation}]",
        f"schedule={{steps: {STEPS}, validateEvery: {VALIDATE_EVERY}, checkpointEvery: 0, logSamplesEvery: 0}}",
        "guards=[]",
        f"checkpoints={{uri: {(home / 'store').as_uri()}, keepLast: 1}}",
    ]
    dapo = str(Path(sys.executable).parent / "dapo")
    options = [part for field in chosen for part in ("--set", field)]
    return [dapo, "run", str(JOB), "--name", name_of(number, seed, 0), "--quiet", "--home", str(home), *options]


def curve(reader: MetadataReader, run: str, metric: str) -> list[CurvePoint]:
    return [point for point in reader.curve(run, metric) if point.value is not None]


def spent(reader: MetadataReader, run: str) -> tuple[int, int]:
    """Tokens generated so far, and until the last validation."""
    generated = curve(reader, run, metrics.TOKENS_GENERATED)
    validated = max((point.step for point in curve(reader, run, VALIDATION)), default=0)
    return (
        int(sum(point.number for point in generated)),
        int(sum(point.number for point in generated if point.step <= validated)),
    )


def work(number: int, seed: int, replicate: int, budget: int, folder: Path) -> Result:
    """Train one row until a validation finds the budget spent. Raises RuntimeError when the run ends before that."""
    name = name_of(number, seed, replicate)
    home = folder / "runs" / f"{name}-{int(time.time())}"
    with (folder / f"{name}.log").open("w") as log:
        process = subprocess.Popen(command(number, seed, home), stdout=log, stderr=subprocess.STDOUT)
        try:
            while process.poll() is None and not _done(home, budget):
                time.sleep(POLL_SECONDS)
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)  # a clean stop
            code = process.wait()
    if not _done(home, budget):
        raise RuntimeError(f"{name} ended with {code} before its budget was spent: see {log.name}")
    return measured(home, number, seed, replicate, budget)


def _reader(home: Path) -> MetadataReader:
    return open_reader(f"sqlite:///{home / 'dapo.db'}")


def _run(home: Path) -> str:
    return next(path.parent.name for path in home.glob("*/job.json"))


def _done(home: Path, budget: int) -> bool:
    try:
        return spent(_reader(home), _run(home))[1] >= budget
    except (StoreError, StopIteration):
        return False  # the run has not begun


def measured(home: Path, number: int, seed: int, replicate: int, budget: int) -> Result:
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
        replicate=replicate,
        nll=values(metrics.NLL_GENERATED),
    )


def planned(rows: Sequence[int], seeds: Sequence[int], replicates: int) -> Iterator[tuple[int, int, int]]:
    """(row, seed, replicate): seed by seed, so that a table of all rows is complete early. Then the first row of the
    first seed again, until it has `replicates` runs."""
    yield from ((number, seed, 0) for seed in seeds for number in rows)
    yield from ((rows[0], seeds[0], replicate) for replicate in range(1, replicates))


def results(
    plan: Iterable[tuple[int, int, int]], budget: int, folder: Path, finished: bool = False
) -> Iterator[Result]:
    """Results on disk are read instead of run; with `finished`, nothing is run."""
    (folder / "results").mkdir(parents=True, exist_ok=True)
    for number, seed, replicate in plan:
        file = folder / "results" / f"{name_of(number, seed, replicate)}-tokens-{budget}.json"
        if finished and not file.exists():
            continue
        if not file.exists():
            began = time.monotonic()
            found = work(number, seed, replicate, budget, folder)
            scratch = file.with_suffix(".part")
            scratch.write_text(json.dumps(asdict(found)))
            scratch.replace(file)
            print(f"{file.stem}: {found.final:.1%} after {time.monotonic() - began:.0f} s", file=sys.stderr)
        yield read(file)


def numbers(text: str) -> list[int]:
    """`1,3-5` as [1, 3, 4, 5]."""
    listed: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        listed += range(int(first), int(last or first) + 1)
    return listed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=numbers, default=numbers("1-6"), help="such as 1,5-6 (default: all)")
    parser.add_argument("--seeds", type=numbers, default=numbers("0-2"), help="default: 0-2")
    parser.add_argument("--replicates", type=int, default=3, help="runs of the first row and seed (default: 3)")
    parser.add_argument("--token-budget", type=int, default=360_000, help="response tokens that each run generates")
    parser.add_argument("--folder", type=Path, default=ROOT / ".dapo" / "ablation", help="runs and finished results")
    parser.add_argument("--page", type=Path, help="a page whose results are replaced, such as docs/ablation.md")
    parser.add_argument("--picture", type=Path, help="where to draw the figure")
    parser.add_argument("--finished", action="store_true", help="run nothing; only report finished runs")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # stops the current run, as Ctrl-C does
    budget, folder = arguments.token_budget, arguments.folder.resolve()
    plan = planned(arguments.rows, arguments.seeds, arguments.replicates)
    finished = list(results(plan, budget, folder, arguments.finished))
    parts = (table(finished, arguments.rows), repeats(finished), sentences(finished, arguments.rows), price(finished))
    text = "\n\n".join("\n".join(lines) for part in parts if (lines := list(part)))
    print(text)
    if arguments.page is not None:
        write(arguments.page, text)
    if arguments.picture is not None:
        from ablation_figure import draw  # matplotlib takes a second to import

        draw(finished, [row.name for row in ROWS], arguments.picture)


if __name__ == "__main__":
    main()
