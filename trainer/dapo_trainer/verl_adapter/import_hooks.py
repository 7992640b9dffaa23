"""Run something just before a module is imported for the first time, in whichever process that happens."""

import importlib.abc
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class _Before(importlib.abc.MetaPathFinder):
    """Finds nothing itself: it acts once and leaves the finding to the others."""

    def __init__(self, module: str, action: Callable[[], None]) -> None:
        self._module, self._action, self._done = module, action, False

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        # It stays in the list when it is done: the import goes through that list now, and would miss the next finder.
        if name == self._module and not self._done:
            self._done = True
            self._action()
        return None


def before_import(module: str, action: Callable[[], None]) -> None:
    """Call `action` when `module` is about to be imported; at once when it already is."""
    if module in sys.modules:
        action()
    else:
        sys.meta_path.insert(0, _Before(module, action))
