"""Linear layers in float32 on a CPU, by torch's product of matrices and by oneDNN (`verl_adapter/cpu_linear.py`).

    python benchmarks/cpu_linear.py [--model FOLDER] [--responses 64] [--tokens 40] [--rounds 20]

In turns, with one thread: GFLOP/s of one layer, and milliseconds of processor for a forward pass and for forward and
backward over `--responses` packed responses of `--tokens` tokens each, as a trainer rank computes them. The least of
all rounds is printed. The model is the demo's unless `--model` is given (`make demo` makes that).
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch.nn import functional
from training_sides import ROOT
from transformers import AutoModelForCausalLM

from dapo_trainer.verl_adapter import attention_varlen, cpu_linear, token_log_probs
from dapo_trainer.verl_config.kernels import VARLEN

SIDES = {"torch": functional.linear, "oneDNN": cpu_linear.linear}


def processor_seconds(work: Callable[[], object]) -> float:
    begun = time.process_time()
    work()
    return time.process_time() - begun


def in_turns(work: Callable[[], object], rounds: int) -> dict[str, float]:
    """Of each side the least seconds of processor."""
    least = dict.fromkeys(SIDES, float("inf"))
    for _ in range(rounds):
        for side, linear in SIDES.items():
            functional.linear = linear
            least[side] = min(least[side], processor_seconds(work))
    return least


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", type=Path, default=ROOT / ".dapo" / "demo" / "model")
    parser.add_argument("--responses", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=20)
    given = parser.parse_args()
    torch.set_num_threads(1)
    attention_varlen.register()
    model = AutoModelForCausalLM.from_pretrained(given.model, attn_implementation=VARLEN, dtype=torch.float32)
    places = torch.arange(given.tokens).repeat(given.responses)[None]
    tokens = torch.randint(model.config.vocab_size, places.shape)

    def forward() -> torch.Tensor:
        logits = model(input_ids=tokens, position_ids=places, use_cache=False).logits
        return token_log_probs.logit_log_probs(logits, tokens).sum()

    def without_gradients() -> None:
        with torch.no_grad():
            forward()

    rows = torch.randn(places.numel(), model.config.hidden_size)
    weight = torch.randn(model.config.intermediate_size, model.config.hidden_size)
    layer = in_turns(lambda: functional.linear(rows, weight), given.rounds * 10)
    flops = 2 * rows.numel() * len(weight)
    print(f"{given.responses} responses of {given.tokens} tokens, one thread")
    print(f"{'one layer, GFLOP/s':<28}{_figures({side: flops / least / 1e9 for side, least in layer.items()})}")
    passes = {"forward, ms": without_gradients, "forward and backward, ms": lambda: forward().backward()}
    for name, work in passes.items():
        least = in_turns(work, given.rounds)
        ratio = least["oneDNN"] / least["torch"]
        print(f"{name:<28}{_figures({side: 1e3 * each for side, each in least.items()})}  ratio {ratio:.2f}")


def _figures(by_side: dict[str, float]) -> str:
    return "  ".join(f"{side} {figure:.0f}" for side, figure in by_side.items())


if __name__ == "__main__":
    main()
