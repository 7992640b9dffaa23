"""The demo's curves of several runs in one picture, and its figures as a table.

    for seed in 0 1 2; do SEED=$seed make demo; done
    python benchmarks/demo_curves.py runs/arithmetic-* --picture docs/images/demo-curves.png

A run is named by its folder.
"""

import argparse
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from pictures import save

from dapo_core.db import MetadataReader, open_reader
from dapo_core.run import metrics

VALIDATION = "val-core/arithmetic/acc/mean@8"
PANELS = (
    ("Validation mean@8", (VALIDATION,)),
    ("Accuracy of all generated", (metrics.ACCURACY_GENERATED,)),
    ("Response length, tokens", (metrics.LENGTH_MEAN,)),
    ("Entropy, nats per token", (metrics.ENTROPY,)),
    ("Mean probability", (metrics.MEAN_PROBABILITY,)),
    ("Groups: all right (solid), all wrong (dashed)", (metrics.GROUPS_ALL_RIGHT, metrics.GROUPS_ALL_WRONG)),
)


def reader_of(run: Path) -> MetadataReader:
    return open_reader(f"sqlite:///{run.resolve().parent / 'dapo.db'}")


def curve(reader: MetadataReader, run: str, metric: str) -> tuple[list[int], list[float]]:
    points = reader.curve(run, metric)
    return [p.step for p in points], [p.number for p in points]


def draw(runs: list[Path], picture: Path) -> None:
    figure, axes = plt.subplots(2, 3, figsize=(13, 6.5), constrained_layout=True)
    colors = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")  # distinguishable with color blindness
    for axis, (title, names) in zip(axes.flat, PANELS, strict=True):
        for run, color in zip(runs, colors, strict=False):
            for name, style in zip(names, ("-", "--"), strict=False):
                steps, values = curve(reader_of(run), run.name, name)
                marker = "o" if name == VALIDATION else None
                axis.plot(steps, values, style, color=color, marker=marker, linewidth=1.6)
        axis.set_title(title, fontsize=10)
        axis.grid(alpha=0.3)
    axes[0][0].axhline(0.8, color="grey", linewidth=0.8, linestyle=":")
    for axis in axes[1]:
        axis.set_xlabel("step")
    drawn = enumerate(colors[: len(runs)])
    handles = [plt.Line2D([], [], color=color, label=f"seed {seed}") for seed, color in drawn]
    axes[0][1].legend(handles=handles, fontsize=9)
    save(figure, picture)


def row(folder: Path) -> str:
    reader, run_id = reader_of(folder), folder.name
    _, values = curve(reader, run_id, VALIDATION)
    run = reader.run(run_id)
    assert run is not None and run.ended_at and run.started_at
    points = reader.curve(run_id, VALIDATION)
    reached = next((p for p in points if p.number >= 0.8), None)
    when = f"step {reached.step}, {reached.ts - run.started_at:.0f} s" if reached else "not reached"
    length = curve(reader, run_id, metrics.LENGTH_MEAN)[1]
    entropy = curve(reader, run_id, metrics.ENTROPY)[1]
    return (
        f"| {run_id} | {values[0]:.1%} | {values[-1]:.1%} | {when} | {run.ended_at - run.started_at:.0f} s | "
        f"{length[0]:.1f} -> {length[-1]:.1f} | {entropy[0]:.3f} -> {entropy[-1]:.3f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--picture", type=Path)
    arguments = parser.parse_args()
    print("| run | before | after | 80 % reached | whole run | tokens | entropy |")
    print("| --- " * 7 + "|")
    for run in arguments.runs:
        print(row(run))
    if arguments.picture is not None:
        draw(arguments.runs, arguments.picture)


if __name__ == "__main__":
    main()
