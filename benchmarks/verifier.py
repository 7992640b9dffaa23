"""Answers checked per second: by the rules, and by a custom function and the algebra library in their processes.

    python benchmarks/verifier.py [--answers 10000] [--json FILE]

Responses are 800 characters and come in groups of 16, as in a step. Start-up of processes is not counted.
"""

import argparse
import asyncio
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from dapo_trainer.rewards.scorer import Scorer
from dapo_trainer.rewards.verdict import ResponseGroup

GROUP = 16
WANTED = 2000.0  # answers per second, on two cores
WORKING = "We add the parts and look at what is left over. " * 16
Group = tuple[list[str], str]


def equal(response: str, truth: str, *, prompt: str) -> float:
    """The simplest custom reward: its time is that of the round trip to its process."""
    return 1.0 if response.rpartition("Answer: ")[2] == truth else -1.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--answers", type=int, default=10_000)
    parser.add_argument("--json", type=Path, help="also write the figures here")
    options = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    figures: dict[str, Any] = {"processors": len(os.sched_getaffinity(0))}
    for name, (make, reward, share) in CASES.items():
        count = int(options.answers * share)
        figures[f"{name} (answers/s)"] = round(asyncio.run(rate(groups(make, count), reward)))
    for name, value in figures.items():
        print(f"{name:<72}{value:>10,}")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")
    slow = [name for name, (*_, share) in CASES.items() if share == 1 and figures[f"{name} (answers/s)"] < WANTED]
    if slow:
        sys.exit(f"below {WANTED:,.0f} answers per second: {', '.join(slow)}")


async def rate(work: list[Group], reward: dict[str, Any]) -> float:
    """Answers per second, with as many groups in flight as a step has."""
    # Not above: this module is imported by the processes of the custom reward too, which need none of it.
    from dapo_core.jobspec import Reward
    from dapo_trainer.verl_config.overrides import reward_settings

    settings = reward_settings(Reward.model_validate({"timeoutSeconds": 60.0} | reward))
    scorer = Scorer({"reward": settings, "overlong": {"filter": True, "penalty": None}})
    try:
        await asyncio.gather(*(scorer.score(ResponseGroup("", ["Answer: \\emptyset"], "x<y"), [1]) for _ in range(4)))
        began = time.perf_counter()
        scored = await asyncio.gather(
            *(scorer.score(ResponseGroup("", answers, truth), [200] * len(answers)) for answers, truth in work)
        )
        took = time.perf_counter() - began
    finally:
        await scorer.close()
    failed = [one.verdict.failure for group in scored for one in group if one.verdict.failure is not None]
    assert not failed, failed[0]
    return sum(len(answers) for answers, _ in work) / took


def groups(make: Callable[[Random], tuple[str, str]], count: int) -> list[Group]:
    """Half of the answers of a group are correct, the others are those of another prompt."""
    random, made = Random(0), []
    for _ in range(count // GROUP):
        right, truth = make(random)
        answers = [right if random.random() < 0.5 else make(random)[0] for _ in range(GROUP)]
        made.append(([f"{WORKING}\nAnswer: {answer}" for answer in answers], truth))
    return made


def integer(random: Random) -> tuple[str, str]:
    value = random.randint(-999, 9999)
    return random.choice([f"{value}", f"${value}$", f"\\boxed{{{value}}}", f"{value:,}"]), str(value)


def fraction(random: Random) -> tuple[str, str]:
    above, below = random.randint(1, 40), random.randint(2, 40)
    return random.choice([f"{above}/{below}", f"$\\dfrac{{{above}}}{{{below}}}$"]), f"\\frac{{{above}}}{{{below}}}"


def closed_form(random: Random) -> tuple[str, str]:
    a, b = random.randint(2, 60), random.randint(2, 60)
    return f"\\sqrt{{{a}}}\\cdot\\frac{{1}}{{{b}}}", f"\\frac{{\\sqrt{{{a}}}}}{{{b}}}"


def polynomial(random: Random) -> tuple[str, str]:
    a, b = random.randint(2, 60), random.randint(2, 60)
    return f"({a}x+1)(x+{b})", f"{a}x^2+{a * b + 1}x+{b}"


def interval(random: Random) -> tuple[str, str]:
    a = random.randint(2, 600)
    return f"[\\frac{{{a}}}{{2}}, \\infty)", f"\\left[\\frac{{{2 * a}}}{{4}}, \\infty\\right)"


# What is made, how it is judged, and the share of the answers that is enough for a rate.
CASES: dict[str, tuple[Callable[[Random], tuple[str, str]], dict[str, Any], float]] = {
    "math, integers: by value": (integer, {}, 1),
    "math, fractions: settled as numbers": (fraction, {}, 1),
    "exact": (integer, {"type": "exact"}, 1),
    "custom, in its processes": (integer, {"type": "custom", "module": "verifier:equal"}, 1),
    "math, closed forms: compared by their digits": (closed_form, {}, 1),
    "math, polynomials: compared at three points": (polynomial, {}, 1),
    "math, intervals: the algebra library in its processes": (interval, {}, 0.05),
}


if __name__ == "__main__":
    main()
