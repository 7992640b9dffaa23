"""What it costs to prepare the paper's data: `dapo data prepare` on a file of the published schema and size.

    python benchmarks/data_prepare.py [--prompts 17917] [--copies 100] [--json FILE]

The file is generated: 1,791,700 rows, each prompt a hundred times, in the columns of DAPO-Math-17k; one prompt in two
hundred has copies that disagree. Preparation runs twice in separate processes, with tokens counted by a tokenizer
created here; wall time and peak memory are of the whole command, the interpreter's start and its imports included.
"""

import argparse
import hashlib
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb

from dapo_trainer.data.prompts import PAPER_TEMPLATE
from dapo_trainer.demo.warm_start import tokenizer

LIMIT_SECONDS, LIMIT_GB = 60.0, 2.0
CONFLICT_EVERY = 200
WORDS = "let the positive integers x and y satisfy an equation whose roots are real find sum of all such pairs".split()


@dataclass(frozen=True)
class Run:
    """One run of the command: wall time, largest resident set, and the digest of what it wrote."""

    seconds: float
    memory_gb: float
    digest: str


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=17_917)
    parser.add_argument("--copies", type=int, default=100)
    parser.add_argument("--json", type=Path, help="also write the figures here")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        figures = measure(Path(place), options.prompts, options.copies)
    for name, value in figures.items():
        print(f"{name:<40}{value!s:>16}")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")
    if figures["seconds"] > LIMIT_SECONDS or figures["peak memory (GB)"] > LIMIT_GB or not figures["same bytes twice"]:
        sys.exit(f"over the limit of {LIMIT_SECONDS:g} s and {LIMIT_GB:g} GB, or not the same bytes twice")


def measure(folder: Path, prompts: int, copies: int) -> dict[str, Any]:
    # In a process of its own: what this one once held would count as the memory of those it starts.
    maker = multiprocessing.get_context("spawn").Process(
        target=generate, args=(folder / "published.parquet", prompts, copies)
    )
    maker.start()
    maker.join()
    tokenizer().save_pretrained(folder / "model")
    runs = [prepare(folder, folder / str(attempt) / "out.parquet") for attempt in range(2)]
    report = json.loads((folder / "0" / "out.report.json").read_text())
    return {
        "processors": len(os.sched_getaffinity(0)),
        "rows": report["rows"],
        "distinct prompts": report["prompts"],
        "conflicting": report["conflicting"],
        "kept": report["kept"],
        "input (MB)": round((folder / "published.parquet").stat().st_size / 1e6, 1),
        "output (MB)": round((folder / "0" / "out.parquet").stat().st_size / 1e6, 1),
        "seconds": round(max(run.seconds for run in runs), 2),
        "peak memory (GB)": round(max(run.memory_gb for run in runs), 2),
        "same bytes twice": runs[0].digest == runs[1].digest,
    }


def prepare(folder: Path, out: Path) -> Run:
    command: list[str | Path] = [Path(sys.executable).with_name("dapo"), "data", "prepare", "dapo-math-17k"]
    options: list[str | Path] = ["--source", folder / "published.parquet", "--model", folder / "model", "--out", out]
    began = time.perf_counter()
    process = subprocess.Popen([*command, *options], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    took = time.perf_counter() - began
    assert status == 0, "the command failed"
    return Run(took, usage.ru_maxrss / 1e6, hashlib.sha256(out.read_bytes()).hexdigest())


def generate(path: Path, prompts: int, copies: int) -> None:
    """Rows in random order, with the published columns; texts of 40 to 400 characters in the published instruction."""
    before, after = PAPER_TEMPLATE.split("{prompt}")
    connection = duckdb.connect()
    connection.execute("SET enable_progress_bar = false")
    connection.execute(
        """CREATE TABLE questions AS
           SELECT number, $before || 'Problem ' || number || ': ' || $after AS shell,
                  array_to_string([$words[1 + (hash(number * 1000 + i) % len($words))::INTEGER]
                                   FOR i IN range(8 + (hash(number) % 60)::INTEGER)], ' ') AS text
           FROM range($prompts) AS numbers(number)""",
        {"before": before, "after": after, "words": WORDS, "prompts": prompts},
    )
    connection.execute(
        f"""COPY (
            SELECT 'math_dapo' AS data_source,
                   [{{'content': replace(shell, ': ', ': ' || text), 'role': 'user'}}] AS prompt, 'MATH' AS ability,
                   {{'ground_truth': CASE WHEN number % {CONFLICT_EVERY} = 0 AND copy = 0 THEN '-1'
                                          ELSE (hash(number) % 1000)::VARCHAR END,
                     'style': 'rule-lighteval/MATH_v2'}} AS reward_model,
                   {{'index': uuid()::VARCHAR}} AS extra_info
            FROM questions, range({copies}) AS copies(copy) ORDER BY hash(number * {copies} + copy)
        ) TO '{path}' (FORMAT parquet)"""
    )
    connection.close()


if __name__ == "__main__":
    main()
