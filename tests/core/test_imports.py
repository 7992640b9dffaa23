"""Core stays light and the layers hold."""

import pkgutil
import subprocess
import sys

import dapo_core

HEAVY = ("torch", "ray", "vllm", "verl", "transformers", "kopf", "kubernetes", "streamlit", "pandas", "numpy")


def test_core_imports_no_engine() -> None:
    modules = [found.name for found in pkgutil.walk_packages(dapo_core.__path__, "dapo_core.")]
    # Migrations are scripts that Alembic runs; they cannot be imported elsewhere.
    wanted = [name for name in modules if ".migrations" not in name]
    code = f"import sys, importlib; [importlib.import_module(n) for n in {wanted!r}]; print(*sorted(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert {name.partition(".")[0] for name in loaded} & set(HEAVY) == set()


def test_operator_stays_the_standard_librarys() -> None:
    import operator

    assert operator.add(1, 2) == 3
