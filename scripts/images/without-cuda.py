"""Standard input, a locked requirement file, less the packages that only a GPU uses; to standard output."""

import re
import sys

CUDA = re.compile(r"(nvidia-|cuda-|triton==)")
# Small, and asked for more than names while torch is loaded.
KEPT = re.compile(r"nvidia-cuda-(runtime|cupti)==")

keep = True
for line in sys.stdin:
    if re.match(r"[A-Za-z0-9]", line):
        keep = CUDA.match(line) is None or KEPT.match(line) is not None
    if keep:
        sys.stdout.write(line)
