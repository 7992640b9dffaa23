"""The wheel that a checkout builds, installed into empty environments with the lock file of each extra."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from patience import patient

ROOT = Path(__file__).parents[2]
REQUIREMENTS = ROOT / "requirements"
# What a user of the extra runs first; none of it may look into the checkout.
FIRST_COMMANDS = {
    "operator": [["dapo", "crd"], ["python", "-c", "import dapo_operator.main"]],
    "dashboard": [["dapo", "dashboard", "--help"], ["python", "-c", "import dapo_dashboard.charts.panels"]],
    "cpu": [["dapo", "plan", str(ROOT / "examples" / "gpu" / "1-gpu.yaml")], ["dapo", "run", "--help"]],
}


def run(*command: str | Path, **environment: str) -> str:
    """Its standard output; AssertionError with all it wrote when it fails."""
    done = subprocess.run(
        [str(part) for part in command],
        cwd="/",
        env={**{k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}, **environment},
        capture_output=True,
        text=True,
        timeout=patient(600),
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def uv() -> str:
    return str((ROOT / run(ROOT / "scripts" / "setup.sh", "uv").strip()).absolute())


@pytest.fixture(scope="module")
def wheel(uv: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, so that nothing appears in the checkout."""
    copy, out = tmp_path_factory.mktemp("checkout") / "dapo", tmp_path_factory.mktemp("wheel")
    files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    subprocess.run(
        ["tar", "-C", str(ROOT), "--null", "-T", "-", "-cf", str(out / "checkout.tar")], input=files, check=True
    )
    copy.mkdir()
    run("tar", "-C", copy, "-xf", out / "checkout.tar")
    run(uv, "build", "--quiet", "--wheel", "--no-build-isolation", "--python", sys.executable, "--out-dir", out, copy)
    (built,) = out.glob("*.whl")
    return built


def environment_of(uv: str, folder: Path) -> Path:
    run(uv, "venv", "--quiet", "--python", sys.executable, folder)
    return folder / "bin" / "python"


@pytest.mark.timeout(900)
@pytest.mark.parametrize("extra", FIRST_COMMANDS)
def test_the_wheel_works_with_the_lock_of_an_extra(extra: str, uv: str, wheel: Path, tmp_path: Path) -> None:
    python = environment_of(uv, tmp_path / "venv")
    lock = REQUIREMENTS / f"{extra}.txt"
    run(uv, "pip", "sync", "--quiet", "--python", python, "--require-hashes", lock)
    run(uv, "pip", "install", "--quiet", "--python", python, "--no-deps", wheel)
    assert run(python.with_name("dapo"), "version", "--short").strip()
    for program, *arguments in FIRST_COMMANDS[extra]:
        run(python.with_name(program), *arguments)
    where = run(python, "-c", "import dapo_core; print(dapo_core.__file__)").strip()
    assert Path(where).is_relative_to(tmp_path)


def test_the_lock_for_gpus_holds_what_the_wheel_asks_for(uv: str, wheel: Path, tmp_path: Path) -> None:
    """Resolved, not installed (ten gigabytes): no package is missing from the lock, none has another version."""
    asked, resolved = tmp_path / "asked.in", tmp_path / "resolved.txt"
    asked.write_text(f"dapo-platform[gpu] @ {wheel.as_uri()}\n")
    constraint: list[str | Path] = ["--constraint", REQUIREMENTS / "gpu.txt"]
    run(uv, "pip", "compile", "--quiet", "--python-version", "3.11", *constraint, "--output-file", resolved, asked)
    assert pinned(resolved), "nothing was resolved"
    assert pinned(resolved) - pinned(REQUIREMENTS / "gpu.txt") == set()


def pinned(requirements: Path) -> set[str]:
    """Each `name==version` of a list; a name has several where they depend on the Python version."""
    return set(re.findall(r"^([\w.\[\]-]+==[^\s;\\]+)", requirements.read_text(), flags=re.MULTILINE))
