"""How fast processes sum a large tensor: NCCL on GPUs, gloo on processors. `python -m` is one rank of it."""

import json
import sys
import time
from datetime import timedelta
from typing import Final

import torch
from torch import distributed

MIB: Final = 1024**2
BYTES: Final = {"cuda": 512 * MIB, "cpu": 16 * MIB}
ROUNDS: Final = {"cuda": 10, "cpu": 3}


def bus_gb(size: int, ranks: int, seconds: float) -> float:
    """GB/s that each link carries: the bus bandwidth of NVIDIA's nccl-tests, comparable with a link's nominal rate."""
    return size * 2 * (ranks - 1) / ranks / seconds / 1e9


def measure(device: str, ranks: int) -> float:
    """Bus bandwidth in GB/s of this process's group. Raises RuntimeError when the sum is wrong or a peer is lost."""
    tensor = torch.ones(BYTES[device] // 4, device=device)
    _reduce(tensor, device)  # NCCL connects in the first one
    if tensor[0].item() != ranks or tensor[-1].item() != ranks:
        raise RuntimeError(f"an all-reduce of ones over {ranks} processes gave {tensor[0].item():g}")
    begun = time.perf_counter()
    for _ in range(ROUNDS[device]):
        _reduce(tensor, device)
    return bus_gb(BYTES[device], ranks, (time.perf_counter() - begun) / ROUNDS[device])


def _reduce(tensor: torch.Tensor, device: str) -> None:
    distributed.all_reduce(tensor)
    if device == "cuda":
        torch.cuda.synchronize()


def main() -> None:
    """Prints `{"met": true}` once all processes have met, then `{"gb": ...}`."""
    settings = json.loads(sys.argv[1])
    device, rank, ranks = settings["device"], settings["rank"], settings["ranks"]
    if device == "cuda":
        torch.cuda.set_device(settings["gpu"])
    store = distributed.TCPStore(
        settings["host"], settings["port"], is_master=rank == 0, timeout=timedelta(seconds=settings["meet_seconds"])
    )
    store.set(f"here-{rank}", "")
    store.wait([f"here-{each}" for each in range(ranks)])
    print(json.dumps({"met": True}), flush=True)
    backend = "nccl" if device == "cuda" else "gloo"
    timeout = timedelta(seconds=settings["reduce_seconds"])
    distributed.init_process_group(backend, store=store, rank=rank, world_size=ranks, timeout=timeout)
    print(json.dumps({"gb": measure(device, ranks)}), flush=True)
    distributed.barrier()  # rank 0 holds the store, which the others still need
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
