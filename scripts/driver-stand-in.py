"""Lets extensions that are linked with NVIDIA's driver load on a machine without one: `driver-stand-in.py VENV FOLDER`.

vLLM's are, and bind each of the driver's functions when they are loaded. FOLDER gets a libcuda.so.1 that defines those
functions; a call answers 1, which is an error in CUDA. For LD_LIBRARY_PATH of checks that compute nothing.
"""

import re
import subprocess
import sys
from pathlib import Path

NAME = "libcuda.so.1"
FUNCTION = re.compile(r" U (cu[A-Z]\w+)$", re.MULTILINE)
# Their own packages load these; all others of the driver's functions are looked for by name when they are called.
LINKED = ("vllm", "cupy", "cupy_backends")


def called(packages: Path) -> set[str]:
    """The driver's functions that extensions bind when they are loaded."""
    libraries = [path for name in LINKED for path in (packages / name).rglob("*.so")]
    listed = subprocess.run(["nm", "-D", *map(str, libraries)], check=True, capture_output=True, text=True).stdout
    return set(FUNCTION.findall(listed))


def main(venv: Path, folder: Path) -> None:
    packages = next(venv.glob("lib/python*/site-packages"))
    source = "".join(f"int {name}(void) {{ return 1; }}\n" for name in sorted(called(packages)))
    folder.mkdir(parents=True, exist_ok=True)
    command = ["gcc", "-w", "-shared", "-fPIC", f"-Wl,-soname,{NAME}", "-o", str(folder / NAME), "-xc", "-"]
    subprocess.run(command, input=source, text=True, check=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
