"""Reward functions as people write them, and as they go wrong."""

import asyncio
import math
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

hoard: list[bytearray] = []


def right_when_equal(response: str, truth: str, prompt: str = "") -> float:
    return 1.0 if response == truth else -1.0


def details(response: str, truth: str, prompt: str = "") -> dict[str, Any]:
    more = {"note": "short", "steps": 3, "share": 0.5, "boxed": True, "parts": [1, 2], "long": "x" * 1000}
    return {"score": 0.25, "correct": response == truth, "predicted": f"{prompt}{response}", **more}


def narrow(answer: str) -> float:
    return 1.0


def flag(response: str, truth: str, prompt: str = "") -> bool:
    return response == truth


def raises(response: str, truth: str, prompt: str = "") -> float:
    raise ValueError("no such\nproblem")


def raises_for_odd(response: str, truth: str, prompt: str = "") -> float:
    if int(response) % 2:
        raise ValueError("odd")
    return 1.0


def not_a_number(response: str, truth: str, prompt: str = "") -> float:
    return math.nan


def infinite(response: str, truth: str, prompt: str = "") -> float:
    return -math.inf


def nothing(response: str, truth: str, prompt: str = "") -> None:
    return None


def no_score(response: str, truth: str, prompt: str = "") -> dict[str, Any]:
    return {"correct": True}


def exits(response: str, truth: str, prompt: str = "") -> float:
    sys.exit(3)


def dies(response: str, truth: str, prompt: str = "") -> float:
    if response == "die":
        os._exit(7)
    return 1.0


def dies_afterwards(response: str, truth: str, prompt: str = "") -> float:
    if response == "die":
        threading.Timer(0.1, os._exit, [7]).start()
    return 1.0


def hangs(response: str, truth: str, prompt: str = "") -> float:
    if response == "hang":
        time.sleep(3600)
    return 1.0


def hangs_with_a_child(response: str, truth: str, prompt: str = "") -> float:
    child = subprocess.Popen(["sleep", "3600"])
    Path(truth).write_text(str(child.pid))
    return hangs(response, truth)


def bomb(response: str, truth: str, prompt: str = "") -> float:
    if response == "bomb":
        while True:
            hoard.append(bytearray(256 << 20))
    return 1.0


def says_a_lot(response: str, truth: str, prompt: str = "") -> dict[str, Any]:
    return {"score": 1, "predicted": "x" * (20 << 20)}


def chatty(response: str, truth: str, prompt: str = "") -> float:
    print('{"score": 99}')
    sys.stdout.flush()
    os.write(1, b'{"score": 98}\n')
    return float(bool(sys.stdin.read()))  # the requests are not to be read by anyone else


def by_level(response: str, truth: str, *, prompt: str, extra_info: dict[str, Any]) -> float:
    return float(extra_info.get("level", -1))


def with_keywords(response: str, truth: str, **more: Any) -> dict[str, Any]:
    return {"score": 1.0, "given": ",".join(sorted(more))}


async def waits(response: str, truth: str, *, prompt: str) -> float:
    await asyncio.sleep(0.01)
    return right_when_equal(response, truth)


async def waits_forever(response: str, truth: str, *, prompt: str) -> float:
    await asyncio.sleep(3600)
    return 1.0


async def raises_later(response: str, truth: str, *, prompt: str) -> float:
    await asyncio.sleep(0)
    raise ValueError("later")


def ranks(responses: list[str], truth: str, *, prompt: str, extra_info: dict[str, Any]) -> list[float]:
    """The share of the others that are shorter: no function of one response."""
    return [sum(len(other) < len(one) for other in responses) / len(responses) for one in responses]


async def ranks_later(responses: list[str], truth: str, *, prompt: str) -> list[float]:
    await asyncio.sleep(0)
    return list(map(float, range(len(responses))))


def one_short(responses: list[str], truth: str, *, prompt: str) -> list[float]:
    return [1.0] * (len(responses) - 1)


def one_bad(responses: list[str], truth: str, *, prompt: str) -> list[Any]:
    return [1.0, math.nan, {"score": 0.5, "correct": True}, "no number"]


def length(response: str, truth: str, *, prompt: str) -> dict[str, Any]:
    return {"score": len(response) / 10, "long": len(response) > 5}


number = 5
