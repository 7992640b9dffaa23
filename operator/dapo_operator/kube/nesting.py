"""JSON of the API server whatever a tenant has put into it: what is nested too deeply for a parser is cut off before.

A podTemplate may have any shape, and the API server accepts thousands of levels. Python's parsers give up at about a
thousand, which would end a watch that all jobs share.
"""

import json
import re
from collections.abc import AsyncIterator
from typing import Any, Final, cast

import aiohttp
from aiohttp.client_reqrep import ClientResponse
from aiohttp.connector import Connection

# More than a job may have (`jobspec.leaves.MAX_LEVELS`), so that what is cut off is an invalid job in any case.
MAX_LEVELS: Final = 100
_TOKEN: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[\[\]{}]', re.DOTALL)


def parse(data: bytes) -> Any:
    """The value of a JSON text, with null in the place of what is nested too deeply. Raises ValueError."""
    try:
        return json.loads(data)
    except RecursionError:
        pass
    try:
        return json.loads(pruned(data))
    except RecursionError:  # cut off in the middle, so that nothing of it is closed
        raise ValueError("JSON that is nested too deeply and incomplete") from None


def pruned(data: bytes) -> bytes:
    """The JSON text with null in the place of each list or mapping below MAX_LEVELS; usually the same text."""
    if data.count(b"{") + data.count(b"[") <= MAX_LEVELS:
        return data
    parts, level, kept_until, cut_from = [], 0, 0, 0
    for token in _TOKEN.finditer(data):
        match token[0]:
            case b"{" | b"[":
                level += 1
                if level == MAX_LEVELS + 1:
                    cut_from = token.start()
            case b"}" | b"]":
                level -= 1
                if level == MAX_LEVELS:
                    parts += [data[kept_until:cut_from], b"null"]
                    kept_until = token.end()
    return b"".join((*parts, data[kept_until:])) if parts else data


async def lines_of(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Whole lines of any length; aiohttp's own reader fails at 64 KiB."""
    rest = b""
    async for chunk in content.iter_any():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if line:
                yield line


class PrunedResponse(ClientResponse):
    """A response for a client that parses JSON by itself (Kopf): lists and the lines of a watch are pruned before the
    client sees them. Kopf copies objects in Python, which gives up at fewer levels than parsing."""

    async def start(self, connection: Connection) -> ClientResponse:
        """As `ClientResponse.start`."""
        await super().start(connection)
        if "watch" in self.url.query and self.status < 400:
            # Only what Kopf and aiohttp use of a stream.
            self.content = cast(aiohttp.StreamReader, _PrunedLines(self.content))
        return self

    async def json(self, **_: Any) -> Any:
        """The parsed body."""
        return parse(pruned(await self.read()))


class _PrunedLines:
    """A stream whose chunks are whole lines."""

    def __init__(self, content: aiohttp.StreamReader) -> None:
        self._content = content

    def __getattr__(self, name: str) -> Any:
        return getattr(self._content, name)

    async def iter_chunked(self, _: int) -> AsyncIterator[bytes]:
        async for line in lines_of(self._content):
            yield pruned(line) + b"\n"
