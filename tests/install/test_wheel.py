"""The wheel that a checkout builds, installed into empty environments with the lock file of each extra."""

import os
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
    """Not installed, ten gigabytes: each requirement of the extra `gpu` is in its lock, in a version that it allows."""
    python = environment_of(uv, tmp_path / "venv")
    asked = run(
        uv, "pip", "install", "--dry-run", "--quiet", "--python", python, "--no-deps", "-r", REQUIREMENTS / "gpu.txt"
    )
    assert asked == ""
    run(
        uv, "pip", "compile", "--quiet", "--python-version", "3.11", "--constraint", REQUIREMENTS / "gpu.txt",
        "--no-header", "--output-file", tmp_path / "resolved.txt", _asking_for_gpu(wheel, tmp_path),
    )  # fmt: skip
    locked = _versions(REQUIREMENTS / "gpu.txt")
    resolved = _versions(tmp_path / "resolved.txt")
    assert {name: version for name, version in resolved.items() if locked.get(name) != version} == {
        "dapo-platform": resolved["dapo-platform"]
    }


def _asking_for_gpu(wheel: Path, folder: Path) -> Path:
    asking = folder / "asking.in"
    asking.write_text(f"dapo-platform[gpu] @ {wheel.as_uri()}\n")
    return asking


def _versions(requirements: Path) -> dict[str, str]:
    """Pinned names; a URL stands for its own version."""
    found = {}
    for line in requirements.read_text().splitlines():
        if "==" in line and line[0].isalpha():
            name, _, version = line.partition("==")
            found[name.strip()] = version.split()[0].rstrip("\\;")
        elif " @ " in line and line[0].isalpha():
            name, _, url = line.partition(" @ ")
            found[name.strip()] = url
    return found
