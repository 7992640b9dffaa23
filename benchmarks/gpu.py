"""The first minutes with a GPU: small models, both modes, a few steps each, and whether the numbers agree.

    python benchmarks/gpu.py [--out .dapo/gpu] [--device cuda|cpu] [--tiny] [--steps 4] [--again]

Builds Qwen2.5's 0.5B and 1.5B with random weights and a byte tokenizer (nothing is downloaded), trains each with
`dapo run` in Colocated and Separated mode on one device, and checks of every run that

- training and rollout give the sampled tokens the same probabilities,
- weights arrive: verl loads engines with dummy weights, which would show in those probabilities; on CPUs one lost
  update would as well, while bfloat16 hides it,
- a step can be profiled: torch's profiler leaves a trace of the second one.

Writes OUT/results.md, one line a run. A run that has ended is not repeated (`--again` does), so that an interrupted
benchmark goes on where it was. With `--device cpu --tiny` it runs anywhere, on a model of three layers.
"""

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any, Final

import yaml

from dapo_core.run import metrics

HERE: Final = Path(__file__).parent
MODELS: Final = ("Qwen2.5-0.5B", "Qwen2.5-1.5B")
MODES: Final = ("Colocated", "Separated")
TINY: Final = "tiny"
PROFILED_STEP: Final = 2
GRADIENT: Final = "actor/grad_norm"
STEP_SECONDS: Final = "timing_s/step"
# Mean difference of a token's probability, which is about 0.004 with random weights. Engines that were sent nothing
# differ by half of that; bfloat16 rounds by a percent. On CPUs weights of the step before differ by 2e-5, which is what
# Separated mode has by design.
TOLERANCE: Final = {
    ("cuda", "Colocated"): 5e-4,
    ("cuda", "Separated"): 1e-3,
    ("cpu", "Colocated"): 1e-5,
    ("cpu", "Separated"): 1e-4,
}
TIMEOUT_SECONDS: Final = 600
PROMPTS: Final = 512


@dataclass(frozen=True)
class Outcome:
    """What a run showed. Medians leave out the first step, and the profiled one, which the profiler slows."""

    model: str
    mode: str
    device: str
    steps: int
    seconds: float
    step_seconds: float
    tokens_per_second: float
    mismatch: float
    gradient: float
    profiled: bool
    memory_gib: float
    problems: tuple[str, ...]


def judge_length(response: str, truth: str, *, prompt: str) -> float:
    """A reward that random weights earn as often as not: whether the response has an even number of bytes."""
    return 1.0 if len(response.encode()) % 2 == 0 else -1.0


def build_model(name: str, folder: Path) -> None:
    """Random weights in the shape of `name`, and a tokenizer of bytes; complete when its last file is there."""
    if (folder / "complete").exists():
        return
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    from dapo_trainer.demo.warm_start import model, tokenizer
    from dapo_trainer.plan.architecture import KNOWN

    torch.manual_seed(0)
    text = tokenizer()
    if name == TINY:
        made = model(text)
    else:
        shape = KNOWN[name]
        # As many tokens as the tokenizer has: vLLM masks what is beyond, and the trainer does not.
        config = Qwen2Config(
            vocab_size=len(text),
            hidden_size=shape.hidden,
            intermediate_size=shape.intermediate,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads,
            num_key_value_heads=shape.kv_heads,
            tie_word_embeddings=shape.tied,
            max_position_embeddings=4096,
            bos_token_id=None,
            eos_token_id=text.eos_token_id,
            pad_token_id=text.pad_token_id,
        )
        made = Qwen2ForCausalLM(config).bfloat16()
    made.save_pretrained(folder)
    text.save_pretrained(folder)
    (folder / "complete").touch()


def write_data(file: Path) -> None:
    """Prompts in verl's chat schema."""
    import pyarrow
    from pyarrow import parquet

    from dapo_trainer.demo.prepare import rows

    file.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pyarrow.Table.from_pylist(rows("arithmetic", PROMPTS, Random(0), set())), file)


def job(name: str, mode: str, device: str, steps: int, out: Path) -> dict[str, Any]:
    """The job file of one run."""
    tiny = name == TINY
    prompts, responses, tokens = (8, 4, 24) if tiny else (32, 16, 512)
    overrides: dict[str, Any] = {
        "global_profiler.tool": "torch",
        "global_profiler.steps": [PROFILED_STEP],
        "global_profiler.save_path": str(profile_folder(name, mode, out)),
        "actor_rollout_ref.actor.profiler.enable": True,
        "actor_rollout_ref.actor.profiler.all_ranks": True,
    }
    if mode == "Separated" and device == "cuda":
        # NCCL refuses two ranks on one GPU, and the two halves of the job share it.
        overrides["actor_rollout_ref.rollout.checkpoint_engine.backend"] = "dapo_tcp"
        overrides["actor_rollout_ref.rollout.checkpoint_engine.update_weights_bucket_megabytes"] = 1024
        overrides["actor_rollout_ref.rollout.gpu_memory_utilization"] = 0.4
    return {
        "apiVersion": "dapo.io/v1alpha1",
        "kind": "DAPOJob",
        "metadata": {"name": f"gpu-{mode.lower()}"},
        "spec": {
            "model": {"source": str(out / "models" / name), "dtype": "float32" if device == "cpu" else "bfloat16"},
            "data": {"train": [{"source": str(out / "train.parquet")}], "maxPromptTokens": 16},
            "reward": {"type": "custom", "module": "gpu:judge_length"},
            "algorithm": {"preset": "grpo"},
            "optimizer": {"learningRate": 1e-5, "warmupSteps": 0},
            "batch": {
                "prompts": prompts,
                "responsesPerPrompt": responses,
                "miniBatchResponses": prompts * responses // 2,
                "maxResponseTokens": tokens,
            },
            "schedule": {"steps": steps, "validateBefore": False, "checkpointEvery": 0},
            "topology": {"mode": mode},
            "verlOverrides": overrides,
        },
    }


def profile_folder(name: str, mode: str, out: Path) -> Path:
    return out / "profiles" / f"{name}-{mode.lower()}"


def run(name: str, mode: str, device: str, steps: int, out: Path) -> Outcome:
    """Train, and read what was recorded."""
    work = out / "runs" / f"{name}-{mode.lower()}"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    file = work / "job.yaml"
    file.write_text(yaml.safe_dump(job(name, mode, device, steps, out)))
    command = [str(Path(sys.executable).parent / "dapo"), "run", str(file), "--plain", "--home", str(work / "home")]
    environment = os.environ | {"DAPO_DEVICE": device, "PYTHONPATH": str(HERE)}
    if mode == "Separated" and device == "cuda":
        first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
        environment["CUDA_VISIBLE_DEVICES"] = f"{first},{first}"  # the same one for trainer and rollout
    begun = time.monotonic()
    with (work / "log").open("w") as log:
        try:
            code: int | None = subprocess.run(
                command, env=environment, stdout=log, stderr=subprocess.STDOUT, timeout=TIMEOUT_SECONDS
            ).returncode
        except subprocess.TimeoutExpired:
            code = None
    ended = "did not end in time" if code is None else f"ended with {code}"
    failed = () if code == 0 else (f"{ended}, see {work / 'log'}",)
    found = recorded(work / "home") if (work / "home" / "dapo.db").is_file() else {}
    return outcome(name, mode, device, time.monotonic() - begun, found, traces(name, mode, out), failed)


def recorded(home: Path) -> dict[str, dict[int, float]]:
    """The curves of the run, by metric and step."""
    from dapo_core.db import open_reader

    reader = open_reader(f"sqlite:///{home / 'dapo.db'}")
    try:
        (last,) = reader.runs(limit=1)
        names = (metrics.MISMATCH, GRADIENT, STEP_SECONDS, metrics.TOKENS_TRAINED, metrics.GPU_MEMORY)
        return {
            name: {point.step: point.value for point in reader.curve(last.run_id, name) if point.value is not None}
            for name in names
        }
    finally:
        reader.close()


def traces(name: str, mode: str, out: Path) -> bool:
    return any(path.stat().st_size > 0 for path in profile_folder(name, mode, out).rglob("*.json*"))


def outcome(
    name: str,
    mode: str,
    device: str,
    seconds: float,
    curves: dict[str, dict[int, float]],
    profiled: bool,
    failed: tuple[str, ...] = (),
) -> Outcome:
    """Judge what a run recorded. Pure."""
    problems = [*failed]
    mismatch = max(curves.get(metrics.MISMATCH, {}).values(), default=float("nan"))
    tolerance = TOLERANCE[device, mode]
    if not mismatch <= tolerance:  # also when it was not recorded
        problems.append(f"probabilities of training and rollout differ by {mismatch:.1e}, more than {tolerance:.0e}")
    gradient = max(curves.get(GRADIENT, {}).values(), default=0.0)
    if not gradient > 0:
        problems.append("the policy did not move, so nothing shows whether weights arrive")
    if not profiled:
        problems.append("the profiler left no trace")
    steps = curves.get(STEP_SECONDS, {})
    usual = [value for step, value in steps.items() if step not in (1, PROFILED_STEP)]
    tokens = curves.get(metrics.TOKENS_TRAINED, {})
    rates = [tokens[step] / value for step, value in steps.items() if step in tokens and step not in (1, PROFILED_STEP)]
    memory = max(curves.get(metrics.GPU_MEMORY, {}).values(), default=0.0)
    return Outcome(
        name,
        mode,
        device,
        len(steps),
        seconds,
        statistics.median(usual) if usual else float("nan"),
        statistics.median(rates) if rates else float("nan"),
        mismatch,
        gradient,
        profiled,
        memory,
        tuple(problems),
    )


def table(outcomes: list[Outcome], machine: str) -> str:
    """All runs as Markdown. Pure."""
    lines = [
        f"{machine}. Random weights, {'/'.join(sorted({each.device for each in outcomes}))}; medians without the first "
        "and the profiled step.",
        "",
        "| model | mode | steps | whole run s | step s | tokens/s | probability difference | memory GiB | verdict |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for each in outcomes:
        verdict = "; ".join(each.problems) or "agrees, weights arrive, profiled"
        lines.append(
            f"| {each.model} | {each.mode} | {each.steps} | {each.seconds:.0f} | {each.step_seconds:.2f} "
            f"| {each.tokens_per_second:,.0f} | {each.mismatch:.1e} | {each.memory_gib:.1f} | {verdict} |"
        )
    return "\n".join(lines) + "\n"


def machine(device: str) -> str:
    """The device's name."""
    if device == "cuda":
        import torch

        return f"{torch.cuda.get_device_name()}, torch {torch.__version__}"
    return f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path(".dapo/gpu"))
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a model of three layers, instead of 0.5B and 1.5B")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=MODES)
    parser.add_argument("--steps", type=int, default=4, help="at least 3, for a median")
    parser.add_argument("--again", action="store_true", help="repeat runs that have ended")
    arguments = parser.parse_args()
    out = arguments.out.resolve()
    write_data(out / "train.parquet")
    outcomes = []
    for name in (TINY,) if arguments.tiny else MODELS:
        build_model(name, out / "models" / name)
        for mode in arguments.modes:
            kept = out / "results" / f"{arguments.device}-{name}-{mode.lower()}-{arguments.steps}.json"
            if arguments.again or not kept.exists():
                shutil.rmtree(profile_folder(name, mode, out), ignore_errors=True)
                print(f"{name}, {mode}: training ...", flush=True)
                ended = run(name, mode, arguments.device, arguments.steps, out)
                kept.parent.mkdir(parents=True, exist_ok=True)
                kept.write_text(json.dumps(asdict(ended)))
            fields = json.loads(kept.read_text())
            outcomes.append(Outcome(**fields | {"problems": tuple(fields["problems"])}))
    text = table(outcomes, machine(arguments.device))
    (out / "results.md").write_text(text)
    print(text, end="")
    sys.exit(any(each.problems for each in outcomes))


if __name__ == "__main__":
    main()
