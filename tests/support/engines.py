"""verl and its kin imported as a trainer process does, for the tests that need the real thing."""

import importlib
import os
import sys
import warnings
from functools import cache
from types import ModuleType

from dapo_trainer.verl_adapter import environment


@cache
def load(module: str) -> ModuleType:
    """Import `module` under the environment of a run on processors, which is then taken back.

    What third parties warn of while they are imported is theirs: only that is silenced.
    """
    before = dict(os.environ)
    os.environ.update(environment("cpu"))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            importlib.import_module(module)
    finally:
        os.environ.clear()
        os.environ.update(before)
    return sys.modules[module]
