"""Runs a user's reward function in processes that can be killed: a hang, crash or memory bomb costs one response."""

import asyncio
import contextlib
import json
import math
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dapo_trainer.rewards.verdict import ResponseGroup, Verdict, failed

START_SECONDS = 60.0
MEMORY_MIB = 2048
LINE_LIMIT = 16 << 20
READY = b"ready\n"


@dataclass(frozen=True)
class FunctionReference:
    """A function as a job names it, `module:name` or `/folder/file.py:name`, and whether it takes a whole group."""

    text: str
    per_group: bool = False

    @property
    def command(self) -> Sequence[str]:
        """Starts a process that imports it, says so, and scores."""
        unit = "group" if self.per_group else "response"
        return sys.executable, "-m", "dapo_trainer.rewards.sandbox", self.text, str(MEMORY_MIB), unit


class SandboxDiedError(Exception):
    """The process ended, or wrote something that is not a reply, before its verdict."""


class Verifier:
    """Scores with `processes` sandboxes, by default one a core; each call may take `timeout_seconds` of wall time, not
    counting start-up."""

    def __init__(
        self,
        function: FunctionReference,
        timeout_seconds: float,
        processes: int | None = None,
        start_seconds: float = START_SECONDS,
    ) -> None:
        self._function, self._timeout, self._start_seconds = function, timeout_seconds, start_seconds
        self._processes = processes or usable_processors()
        self._idle: asyncio.LifoQueue[Process | None] | None = None
        self._alive: set[Process] = set()
        self._closed = False

    async def check(self, group: ResponseGroup) -> Sequence[Verdict]:
        """The verdict on each response, in one call or in one for each; waits for free processes. Never raises for what
        the user's function does."""
        if self._function.per_group:
            return await self._call(group, group.responses)
        calls = (self._call(group, [response]) for response in group.responses)
        return [verdict for [verdict] in await asyncio.gather(*calls)]

    async def _call(self, group: ResponseGroup, responses: Sequence[str]) -> Sequence[Verdict]:
        request = {
            "prompt": group.prompt,
            "responses": responses,
            "truth": group.truth,
            "extra_info": group.extra_info,
        }
        idle = self._pool()
        process, kept = await idle.get(), None
        try:
            kept, verdicts = await self._verdicts(process, request, len(responses))
            return verdicts
        finally:
            idle.put_nowait(kept)

    async def close(self) -> None:
        """End every process, including those in the middle of a check; later checks fail."""
        self._closed = True
        for process in list(self._alive):
            await self._end(process)

    async def _verdicts(
        self, process: Process | None, request: dict[str, Any], count: int
    ) -> tuple[Process | None, Sequence[Verdict]]:
        """The verdicts, and the process if it can be used again."""
        used = process is not None
        try:
            process = process or await self._start()
            reply = await self._ask(process, request)
            verdicts = [failed(one["failure"]) if "failure" in one else Verdict(**one) for one in reply["verdicts"]]
        except TimeoutError:
            await self._end(process)
            return None, [failed(f"no verdict within {self._timeout:g} s")] * count
        except SandboxDiedError as error:
            await self._end(process)
            if used:  # it may have died of an earlier response: this one gets a new process
                return await self._verdicts(None, request, count)
            return None, [failed(str(error))] * count
        except BaseException:
            await self._end(process)  # a pending reply must not be read as the next response's
            raise
        if reply.get("spent", False):
            await self._end(process)
            process = None
        return process, verdicts

    def _pool(self) -> asyncio.LifoQueue[Process | None]:
        # Created on first use: the queue belongs to the event loop that uses it. Last in, first out: a process that is
        # running is used before another one is started.
        if self._idle is None:
            self._idle = asyncio.LifoQueue()
            for _ in range(self._processes):
                self._idle.put_nowait(None)
        return self._idle

    async def _start(self) -> Process:
        """A process that has imported the function. Raises SandboxDiedError, also after `start_seconds`."""
        if self._closed:
            raise SandboxDiedError("the run is ending")
        # In a new session: what the user's code starts is killed with it.
        process = await asyncio.create_subprocess_exec(
            *self._function.command, stdin=PIPE, stdout=PIPE, limit=LINE_LIMIT, start_new_session=True
        )
        self._alive.add(process)
        assert process.stdout is not None
        try:
            async with asyncio.timeout(self._start_seconds):
                line = await process.stdout.readline()
        except TimeoutError:
            await self._end(process)
            raise SandboxDiedError(f"{self._function.text} was not imported within {self._start_seconds:g} s") from None
        except BaseException:
            await self._end(process)
            raise
        if line != READY or self._closed:
            await self._end(process)
            raise SandboxDiedError(f"{self._function.text} cannot be imported (its error is in the trainer's log)")
        return process

    async def _ask(self, process: Process, request: dict[str, Any]) -> dict[str, Any]:
        """One reply. Raises TimeoutError and SandboxDiedError."""
        assert process.stdin is not None and process.stdout is not None
        try:
            async with asyncio.timeout(self._timeout):
                process.stdin.write(json.dumps(request).encode() + b"\n")
                await process.stdin.drain()
                reply: dict[str, Any] = json.loads(await process.stdout.readuntil())
                return reply
        except TimeoutError:
            raise
        except (OSError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            raise SandboxDiedError(await self._last_words(process)) from error

    async def _last_words(self, process: Process) -> str:
        await self._end(process)
        code = process.returncode
        how = f"signal {signal.Signals(-code).name}" if code is not None and code < 0 else f"exit code {code}"
        return f"the reward process died ({how})"

    async def _end(self, process: Process | None) -> None:
        if process is None or process not in self._alive:
            return
        with contextlib.suppress(TimeoutError):
            # One that is exiting by itself leaves its exit code; its children may outlive it either way.
            await asyncio.wait_for(process.wait(), 0.05)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        self._alive.discard(process)


CGROUPS: Final = Path("/sys/fs/cgroup")


def usable_processors(cgroups: Path = CGROUPS) -> int:
    """At least 1; a limit of 2.5 processors counts as 3. `os.cpu_count` knows the machine's alone."""
    available = len(os.sched_getaffinity(0))
    limit = _limit(cgroups)
    return available if limit is None else max(1, min(available, math.ceil(limit)))


def _limit(cgroups: Path) -> float | None:
    """In processors, of cgroup version 2 or 1; None where there is none."""
    try:
        if (unified := cgroups / "cpu.max").exists():
            quota, period = unified.read_text().split()
        else:
            quota = (cgroups / "cpu" / "cpu.cfs_quota_us").read_text().strip()
            period = (cgroups / "cpu" / "cpu.cfs_period_us").read_text()
        return None if quota in ("max", "-1") else int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return None
