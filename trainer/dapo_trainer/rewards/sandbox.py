"""The other side of the verifier: a small process that imports the user's function and runs one call at a time.

Protocol: one JSON line in ({prompt, responses, truth, extra_info}), one out: {verdicts: [...]}, one for each response,
each {score, correct, predicted, details} or {failure}; with `spent` when this process must not be used again.
Run as `python -m dapo_trainer.rewards.sandbox function memory_mib unit`; `unit` is response or group.
"""

import importlib.util
import inspect
import json
import math
import os
import resource
import signal
import sys
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import psutil

from dapo_trainer.process.signals import signal_at_death_of
from dapo_trainer.rewards.custom import check_signature, details_of, takes_extra_info

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

PREDICTED_CHARACTERS = 300
FILE_MODULE = "dapo_reward_file"
Request = dict[str, Any]


def load(reference: str) -> Callable[..., Any]:
    """The function a job names as `module:name` or `/folder/file.py:name`.

    Raises what the module raises, AttributeError or TypeError.
    """
    where, _, name = reference.rpartition(":")
    function: Callable[..., Any] = getattr(
        _of_file(Path(where)) if where.endswith(".py") else import_module(where), name
    )
    if not callable(function):
        raise TypeError(f"{name} is {type(function).__name__}, not a function")
    check_signature(function, name)
    return function


def _of_file(path: Path) -> ModuleType:
    """The module of a file, under a name of its own: `math.py` hides no module. It may import its neighbours."""
    spec = importlib.util.spec_from_file_location(FILE_MODULE, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise FileNotFoundError(f"{path} is not a file")
    sys.path.append(str(path.parent))
    module = importlib.util.module_from_spec(spec)
    sys.modules[FILE_MODULE] = module
    spec.loader.exec_module(module)
    return module


def check(function: Callable[..., Any], request: Request, *, group: bool, extra_info: bool) -> dict[str, Any]:
    """One call, with the one response or all: a number is a score, correct above 0, a mapping a `custom.Judgement`."""
    responses = request["responses"]
    extra = {"extra_info": request["extra_info"]} if extra_info else {}
    try:
        asked = responses if group else responses[0]
        returned = function(asked, request["truth"], prompt=request["prompt"], **extra)
        if type(returned) is not float and inspect.isawaitable(returned):
            returned = _loop().run_until_complete(returned)
        scores = list(returned) if group else [returned]
        if len(scores) != len(responses):
            raise ValueError(f"{len(scores)} scores for {len(responses)} responses")
        return {"verdicts": [_verdict(score) for score in scores]}
    except MemoryError:
        # What holds the memory may never release it, and must not cost the next response.
        return _all_failed(request, "MemoryError: over the memory limit of the reward process") | {"spent": True}
    except BaseException as error:
        return _all_failed(request, f"{type(error).__name__}: {error}")


def _verdict(score: Any) -> dict[str, Any]:
    """Of one response; what is wrong with it costs no other response of its group."""
    if type(score) is float and math.isfinite(score):
        return {"score": score, "correct": score > 0}
    try:
        fields = score if isinstance(score, Mapping) else {"score": score}
        value, predicted = float(fields["score"]), fields.get("predicted")
        correct = bool(fields.get("correct", value > 0))
        predicted = None if predicted is None else str(predicted)[:PREDICTED_CHARACTERS]
        details = details_of(fields)
    except MemoryError:
        raise
    except Exception as error:
        return {"failure": f"{type(error).__name__}: {error}"}
    if not math.isfinite(value):
        return {"failure": f"the score is {value}"}
    return {"score": value, "correct": correct, "predicted": predicted, "details": details}


def _all_failed(request: Request, failure: str) -> dict[str, Any]:
    return {"verdicts": [{"failure": failure}] * len(request["responses"])}


@cache
def _loop() -> "AbstractEventLoop":
    """One for all calls: clients that a module keeps belong to it. Imported when a function is the first to need it."""
    import asyncio

    return asyncio.new_event_loop()


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
    function, group = load(sys.argv[1]), sys.argv[3] == "group"
    extra_info = takes_extra_info(function)
    _limit_memory(int(sys.argv[2]))
    print("ready", file=replies)
    for line in requests:
        print(json.dumps(check(function, json.loads(line), group=group, extra_info=extra_info)), file=replies)


if __name__ == "__main__":
    main()
