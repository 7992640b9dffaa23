"""A trainer that keeps the contract of a trainer process without training: what tests of `dapo run` start.

FAKE_PLAN is JSON: {"steps": 4, "seconds": 0.05, "values": {"actor/entropy": 0.1},
"attempts": {"1": {"at": 2, "do": ["orphans", "exit 30"]}}}.
An attempt does its list once it has finished step `at` (0: before the first). Its checkpoint is one number in the
run's folder, written at each step and at SIGTERM.
"""

import json
import os
import runpy
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from dapo_core.run.last_words import LastWords
from dapo_trainer.spool import Spool

WORK = Path(os.environ["DAPO_WORK_DIR"])
ATTEMPT = int(os.environ["DAPO_ATTEMPT"])
PLAN = json.loads(os.environ.get("FAKE_PLAN", "{}"))
STEPS = PLAN.get("steps", 4)
SECONDS = PLAN.get("seconds", 0.05)
CHECKPOINT = WORK.parent / "fake-checkpoint"
# A child that leaves its parent, its session and (as a process title does) its environment.
ORPHAN_MARK = f"orphan of {WORK.parent}".encode()
ORPHAN = f"import os,sys,time\nif os.fork(): sys.exit()\nos.setsid()\ntime.sleep(600) # {ORPHAN_MARK.decode()}"
stopping = threading.Event()
# This runs as a script of its own, without pytest's path.
step_metrics = runpy.run_path(str(Path(__file__).parents[2] / "support" / "step_metrics.py"))["step_metrics"]


def beat(phase: str, step: int, detail: str = "") -> None:
    text = json.dumps({"phase": phase, "step": step, "totalSteps": STEPS, "ts": time.time(), "detail": detail})
    scratch = WORK / "heartbeat.new"
    scratch.write_text(text)
    scratch.replace(WORK / "heartbeat.json")


def values(step: int) -> dict[str, float]:
    """Metrics of one step, with a validation every fifth and at the end."""
    metrics: dict[str, float] = step_metrics(step, STEPS, SECONDS)
    if step % 5 == 0 or step == STEPS:
        metrics["val-core/addition/acc/mean@8"] = metrics["dapo/accuracy/generated"] - 0.03
    planned: dict[str, float] = PLAN.get("values", {})
    return metrics | planned


def end(code: int, reason: str, message: str, step: int, spool: Spool) -> None:
    spool.close()
    LastWords(reason, message, step).write()
    print(f"fake trainer ends with {code}", flush=True)
    os._exit(code)


def do(action: str, step: int, spool: Spool) -> None:
    verb, _, rest = action.partition(" ")
    if verb == "exit":
        code, _, message = rest.partition(" ")
        end(int(code), "DistributedFault" if code == "30" else "BadData", message or "as planned", step, spool)
    elif verb == "crash":
        os._exit(int(rest))
    elif verb == "hang":
        hang_here_as_planned()
    elif verb == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    elif verb == "orphans":
        subprocess.Popen([sys.executable, "-c", ORPHAN], start_new_session=True)
        subprocess.Popen([sys.executable, "-c", ORPHAN], env={"PATH": os.environ["PATH"]})
        time.sleep(0.5)
    elif verb == "print":
        print(rest, flush=True)
    elif verb == "count":
        seen = [path for path in Path("/proc").glob("[0-9]*/cmdline") if ORPHAN_MARK in readable(path)]
        print(f"orphans seen: {len(seen)}", flush=True)


def readable(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def hang_here_as_planned() -> None:
    while True:
        time.sleep(600)


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: stopping.set())
    spool = Spool(WORK / "spool", ATTEMPT)
    plan = PLAN.get("attempts", {}).get(str(ATTEMPT), {})
    beat("start", 0, "loading the model")
    time.sleep(PLAN.get("start", 0.0))
    done = int(CHECKPOINT.read_text()) if CHECKPOINT.exists() else 0
    for step in range(done, STEPS + 1):
        if plan.get("at") == step:
            for action in plan["do"]:
                do(action, step, spool)
        if step == STEPS:
            break
        for phase in ("generate", "score", "update", "sync"):
            beat(phase, step + 1)
            stopping.wait(SECONDS / 4)
        if stopping.is_set():
            beat("stop", step)
            end(143, "Terminated", f"stopped after step {step}", step, spool)
        spool.step(step + 1, values(step + 1))
        CHECKPOINT.write_text(str(step + 1))
    end(0, "Completed", f"finished all {STEPS} steps", STEPS, spool)


if __name__ == "__main__":
    main()
