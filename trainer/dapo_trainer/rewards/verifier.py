"""Runs a user's reward function in processes that can be killed: a hang, crash or memory bomb costs one response."""

import asyncio
import contextlib
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence
from typing import Any

from dapo_trainer.rewards.verdict import Verdict, failed

START_SECONDS = 60.0
MEMORY_MIB = 2048
LINE_LIMIT = 16 << 20
READY = b"ready\n"


def sandbox_command(module: str, memory_mib: int = MEMORY_MIB) -> Sequence[str]:
    return sys.executable, "-m", "dapo_trainer.rewards.sandbox", module, str(memory_mib)


class SandboxDiedError(Exception):
    """The process ended, or wrote something that is not a reply, before its verdict."""


class Verifier:
    """Scores with `processes` sandboxes; each check may take `timeout_seconds` of wall time, not counting start-up."""

    def __init__(
        self, module: str, timeout_seconds: float, processes: int = 2, start_seconds: float = START_SECONDS
    ) -> None:
        self._module, self._timeout, self._start_seconds = module, timeout_seconds, start_seconds
        self._processes = processes
        self._idle: asyncio.Queue[Process | None] | None = None
        self._alive: set[Process] = set()
        self._closed = False

    async def check(self, prompt: str, response: str, truth: str) -> Verdict:
        """The verdict on one response; waits for a free process. Never raises for what the user's function does."""
        idle = self._pool()
        process, kept = await idle.get(), None
        try:
            kept, verdict = await self._verdict(process, {"prompt": prompt, "response": response, "truth": truth})
            return verdict
        finally:
            idle.put_nowait(kept)

    async def close(self) -> None:
        """End every process, including those in the middle of a check; later checks fail."""
        self._closed = True
        for process in list(self._alive):
            await self._end(process)

    async def _verdict(self, process: Process | None, request: dict[str, str]) -> tuple[Process | None, Verdict]:
        """The verdict, and the process if it can be used again."""
        used = process is not None
        try:
            process = process or await self._start()
            reply = await self._ask(process, request)
        except TimeoutError:
            await self._end(process)
            return None, failed(f"no verdict within {self._timeout:g} s")
        except SandboxDiedError as error:
            await self._end(process)
            if used:  # it may have died of an earlier response: this one gets a new process
                return await self._verdict(None, request)
            return None, failed(str(error))
        except BaseException:
            await self._end(process)  # a pending reply must not be read as the next response's
            raise
        if reply.pop("spent", False):
            await self._end(process)
            process = None
        return process, failed(reply["failure"]) if "failure" in reply else Verdict(**reply)

    def _pool(self) -> asyncio.Queue[Process | None]:
        # Created on first use: the queue belongs to the event loop that uses it.
        if self._idle is None:
            self._idle = asyncio.Queue()
            for _ in range(self._processes):
                self._idle.put_nowait(None)
        return self._idle

    async def _start(self) -> Process:
        """A process that has imported the function. Raises SandboxDiedError, also after `start_seconds`."""
        if self._closed:
            raise SandboxDiedError("the run is ending")
        # In a new session: what the user's code starts is killed with it.
        process = await asyncio.create_subprocess_exec(
            *sandbox_command(self._module), stdin=PIPE, stdout=PIPE, limit=LINE_LIMIT, start_new_session=True
        )
        self._alive.add(process)
        assert process.stdout is not None
        try:
            async with asyncio.timeout(self._start_seconds):
                line = await process.stdout.readline()
        except TimeoutError:
            await self._end(process)
            raise SandboxDiedError(f"{self._module} was not imported within {self._start_seconds:g} s") from None
        except BaseException:
            await self._end(process)
            raise
        if line != READY or self._closed:
            await self._end(process)
            raise SandboxDiedError(f"{self._module} cannot be imported (its error is in the trainer's log)")
        return process

    async def _ask(self, process: Process, request: dict[str, str]) -> dict[str, Any]:
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
