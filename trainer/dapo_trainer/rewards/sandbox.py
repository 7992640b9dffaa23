"""The other side of the verifier: a small process that imports the user's function and answers one check at a time.

Protocol: one JSON line in ({prompt, response, truth}), one out ({score, correct, predicted} or {failure}).
Run as `python -m dapo_trainer.rewards.sandbox module:name memory_mib`.
"""

import json
import math
import os
import resource
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any


def load(module_and_name: str) -> Callable[..., Any]:
    """The function a job names as `module:name`; raises ImportError or AttributeError."""
    module, _, name = module_and_name.partition(":")
    function: Callable[..., Any] = getattr(import_module(module), name)
    return function


def answer(function: Callable[..., Any], request: dict[str, str]) -> dict[str, Any]:
    """One check: a number is a score (right when above 0); a mapping may say `score`, `correct` and `predicted`."""
    try:
        returned = function(request["response"], request["truth"], prompt=request["prompt"])
        fields = returned if isinstance(returned, dict) else {"score": returned}
        score = float(fields["score"])
    except MemoryError:
        raise
    except BaseException as error:
        return {"failure": f"{type(error).__name__}: {error}"}
    if not math.isfinite(score):
        return {"failure": f"the score is {score}"}
    predicted = fields.get("predicted")
    return {
        "score": score,
        "correct": bool(fields.get("correct", score > 0)),
        "predicted": None if predicted is None else str(predicted),
    }


def main() -> None:
    function, memory = load(sys.argv[1]), int(sys.argv[2]) << 20
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what the user's code prints must not end up between the replies
    print("ready", file=replies)
    for line in sys.stdin:
        print(json.dumps(answer(function, json.loads(line))), file=replies)


if __name__ == "__main__":
    main()
