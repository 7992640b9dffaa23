"""A user's reward function behind processes that can be killed: a hang, crash or memory bomb costs one response."""

import asyncio
import contextlib
import json
import sys
from asyncio.subprocess import PIPE, Process

from dapo_trainer.rewards.verdict import Verdict, failed

START_SECONDS = 60.0
MEMORY_MIB = 2048
LINE_LIMIT = 16 << 20


class Verifier:
    """Scores with `processes` sandboxes; each check may take `timeout_seconds` of wall time."""

    def __init__(self, module: str, timeout_seconds: float, processes: int = 2) -> None:
        self._module, self._timeout = module, timeout_seconds
        self._processes = processes
        self._idle: asyncio.Queue[Process | None] | None = None

    async def check(self, prompt: str, response: str, truth: str) -> Verdict:
        idle = self._pool()
        process = await idle.get()
        try:
            if process is None or process.returncode is not None:
                process = await self._start()
            async with asyncio.timeout(self._timeout):
                return await self._ask(process, {"prompt": prompt, "response": response, "truth": truth})
        except TimeoutError:
            await _end(process)
            return failed(f"no verdict within {self._timeout:g} s")
        except (OSError, ValueError, asyncio.IncompleteReadError) as error:
            await _end(process)
            return failed(f"the reward process died: {error or type(error).__name__}")
        finally:
            idle.put_nowait(process if process is not None and process.returncode is None else None)

    async def close(self) -> None:
        while self._idle is not None and not self._idle.empty():
            await _end(self._idle.get_nowait())

    def _pool(self) -> asyncio.Queue[Process | None]:
        # Made on first use: the queue belongs to the loop it is used on.
        if self._idle is None:
            self._idle = asyncio.Queue()
            for _ in range(self._processes):
                self._idle.put_nowait(None)
        return self._idle

    async def _start(self) -> Process:
        command = [sys.executable, "-m", "dapo_trainer.rewards.sandbox", self._module, str(MEMORY_MIB)]
        process = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, limit=LINE_LIMIT)
        assert process.stdout is not None
        async with asyncio.timeout(START_SECONDS):
            if await process.stdout.readline() != b"ready\n":
                raise OSError(f"{self._module} could not be loaded")
        return process

    @staticmethod
    async def _ask(process: Process, request: dict[str, str]) -> Verdict:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps(request).encode() + b"\n")
        await process.stdin.drain()
        reply = json.loads(await process.stdout.readuntil())
        return failed(reply["failure"]) if "failure" in reply else Verdict(**reply)


async def _end(process: Process | None) -> None:
    if process is not None and process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
