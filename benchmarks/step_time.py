"""Steps and start-up of `dapo run`, plain verl's `main_ppo` and TRL's `GRPOTrainer`, measured one after the other.

    python benchmarks/step_time.py [JOB.YAML] [--steps 60] [--sides ours,verl,trl] [--resume]

All sides get the same job, model, data, prompts and reward, on processors (training_sides.py). Prints, for each side
and as ratios, the median seconds of a step and of its parts without the first step; seconds from the command to the end
of the first step, and to a batch of which 80 % of the generated responses are correct; seconds of processor; memory.

A side that has finished is written to .dapo/bench/step_time.json at once; --resume measures only what is not there yet.
"""

import argparse
import json
import os
import platform
import re
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path

import psutil
from training_sides import PHASES, ROOT, SIDES, Result, job_with

RESULTS = ROOT / ".dapo" / "bench" / "step_time.json"


def machine() -> dict[str, str]:
    names = re.findall(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True)
    return {
        "processor": names[0] if names else platform.machine(),
        "cores": str(os.cpu_count()),
        "memory": f"{psutil.virtual_memory().total / 2**30:.0f} GiB",
        "python": platform.python_version(),
        "commit": commit.stdout.strip(),
        "load before": f"{os.getloadavg()[0]:.1f}",
    }


def _phase(name: str, result: Result) -> float | None:
    return result.phases.get(name)


def table(results: dict[str, Result]) -> list[str]:
    rows: dict[str, Callable[[Result], float | None]] = {
        f"{'  ' if name != 'step' else ''}{name}": partial(_phase, name) for name in PHASES
    }
    rows |= {
        "to the first step": lambda r: r.to_first_step,
        "to 80 % correct": lambda r: r.to_correct,
        "processor, to the first step": lambda r: r.processor_to_first_step,
        "processor, each further step": lambda r: r.processor_per_step,
        "resident sets, GiB": lambda r: r.resident / 2**30,
        "proportional sets, GiB": lambda r: r.proportional / 2**30,
    }
    others = [side for side in results if side != "ours"] if "ours" in results else []
    lines = [f"{'seconds':<30}" + "".join(f"{side:>9}" for side in results) + "".join(f"{'/ ' + o:>9}" for o in others)]
    for label, of in rows.items():
        values = {side: of(found) for side, found in results.items()}
        ratios = [_ratio(values["ours"], values[other]) for other in others]
        lines.append(f"{label:<30}" + "".join(f"{_figure(v):>9}" for v in [*values.values(), *ratios]))
    return lines


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _ratio(mine: float | None, theirs: float | None) -> float | None:
    return mine / theirs if mine is not None and theirs else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("job", nargs="?", type=Path, default=ROOT / "examples" / "arithmetic.yaml")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--sides", default="ours,verl,trl", help="which, and in which order")
    parser.add_argument(
        "--resume", action="store_true", help=f"keep what {RESULTS.name} has of the same job and commit"
    )
    arguments = parser.parse_args()
    sides = arguments.sides.split(",")
    if unknown := set(sides) - set(SIDES):
        parser.error(f"--sides {','.join(sorted(unknown))}: must be one of {', '.join(SIDES)}")
    job, facts = job_with(arguments.job, arguments.steps), machine()
    measured_as = {"job": job.spec.digest(), "steps": arguments.steps, "commit": facts["commit"]}
    kept = json.loads(RESULTS.read_text()) if arguments.resume and RESULTS.exists() else {}
    done = kept["sides"] if kept.get("of") == measured_as else {}
    for side in sides:
        if side not in done:
            with tempfile.TemporaryDirectory() as folder:
                done[side] = asdict(SIDES[side](job, Path(folder)))
            RESULTS.parent.mkdir(parents=True, exist_ok=True)
            RESULTS.write_text(json.dumps({"of": measured_as, "machine": facts, "sides": done}, indent=1))
    print(", ".join(f"{name}: {value}" for name, value in facts.items()))
    batch = job.spec.batch
    print(f"{arguments.job.name}: {batch.prompts} prompts x {batch.responses_per_prompt}, {arguments.steps} steps")
    print("\n".join(table({side: Result(**done[side]) for side in sides})))


if __name__ == "__main__":
    main()
