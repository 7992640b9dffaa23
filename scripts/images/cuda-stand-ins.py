"""Gives torch's CUDA build something to be linked with on a machine without a GPU: `cuda-stand-ins.py VENV`.

torch's modules name CUDA's libraries and bind each of their functions when they are loaded, though on processors none
is called. Here every library that is not installed becomes an empty one of its name, and one of them defines all the
functions; a call would answer 1, which in each of these libraries means an error.
"""

import re
import subprocess
import sys
from pathlib import Path

CUDA_LIBRARY = re.compile(r"lib(cu|nccl|nvrtc|nvshmem|nvJitLink)")
CUDA_FUNCTION = re.compile(r"(cu|nccl|nvrtc|nvshmem|nvJitLink)")
NEEDED = re.compile(r"\(NEEDED\).*\[(.+)\]")
UNDEFINED = re.compile(r" U (\w+)(?:@|$)", re.MULTILINE)
# NCCL names no versions, so the loader looks here for functions of every version.
HOLDER = "libnccl.so.2"


def output(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def installed(packages: Path) -> set[str]:
    return {path.name for path in packages.glob("nvidia/*/lib/*.so*")}


def build(path: Path, functions: set[str]) -> None:
    source = "".join(f"int {name}(void) {{ return 1; }}\n" for name in sorted(functions))
    command = ["gcc", "-w", "-fno-builtin", "-shared", "-fPIC", f"-Wl,-soname,{path.name}", "-o", str(path), "-xc", "-"]
    subprocess.run(command, input=source, text=True, check=True)


def main(venv: Path) -> None:
    packages = next(venv.glob("lib/python*/site-packages"))
    libraries = sorted((packages / "torch" / "lib").glob("*.so*"))
    needed = {name for library in libraries for name in NEEDED.findall(output("readelf", "-dW", str(library)))}
    missing = {name for name in needed if CUDA_LIBRARY.match(name)} - installed(packages)
    called = {name for library in libraries for name in UNDEFINED.findall(output("nm", "-D", str(library)))}
    # What the installed libraries define comes from them: theirs are searched first, or have their versions.
    functions = {name for name in called if CUDA_FUNCTION.match(name) and not name.startswith(("cuda", "cupti"))}
    for name in missing:
        build(packages / "torch" / "lib" / name, functions if name == HOLDER else set())
    print(f"{len(functions)} functions of {', '.join(sorted(missing))}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
