"""The other side of the verifier: a small process that imports the user's function and runs one check at a time.

Protocol: one JSON line in ({prompt, response, truth}), one out ({score, correct, predicted, details} or {failure}; with
`spent` when this process must not be used again).
Run as `python -m dapo_trainer.rewards.sandbox module:name memory_mib`.
"""

import json
import math
import os
import resource
import signal
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

import psutil

from dapo_trainer.process.signals import signal_at_death_of
from dapo_trainer.rewards.custom import check_signature, details_of

PREDICTED_CHARACTERS = 300


def load(module_and_name: str) -> Callable[..., Any]:
    """The function a job names as `module:name`. Raises what the module raises, AttributeError or TypeError."""
    module, _, name = module_and_name.partition(":")
    function: Callable[..., Any] = getattr(import_module(module), name)
    if not callable(function):
        raise TypeError(f"{name} is {type(function).__name__}, not a function")
    check_signature(function, name)
    return function


def check(function: Callable[..., Any], request: dict[str, str]) -> dict[str, Any]:
    """One check: a number is a score (correct when above 0); a mapping is a `custom.Judgement`."""
    try:
        returned = function(request["response"], request["truth"], prompt=request["prompt"])
        fields = returned if isinstance(returned, Mapping) else {"score": returned}
        score, predicted = float(fields["score"]), fields.get("predicted")
        correct = bool(fields.get("correct", score > 0))
        predicted = None if predicted is None else str(predicted)[:PREDICTED_CHARACTERS]
        details = details_of(fields)
    except MemoryError:
        # What holds the memory may never release it, and must not cost the next response.
        return {"failure": "MemoryError: over the memory limit of the reward process", "spent": True}
    except BaseException as error:
        return {"failure": f"{type(error).__name__}: {error}"}
    if not math.isfinite(score):
        return {"failure": f"the score is {score}"}
    return {"score": score, "correct": correct, "predicted": predicted, "details": details}


def _limit_memory(mebibytes: int) -> None:
    """Limit what checks may allocate beyond what the imports hold; reserved address space does not count."""
    limit = int(psutil.Process().memory_info().data) + (mebibytes << 20)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def main() -> None:
    signal_at_death_of(os.getppid(), signal.SIGKILL)  # a hanging function would outlive a killed trainer
    requests, replies = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w", buffering=1)
    # What the user's code prints or reads must not interfere with requests and replies.
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    function = load(sys.argv[1])
    _limit_memory(int(sys.argv[2]))
    print("ready", file=replies)
    for line in requests:
        print(json.dumps(check(function, json.loads(line))), file=replies)


if __name__ == "__main__":
    main()
