"""Tells browsers that what they show is out of date, so that they need not ask: while nothing happens, nothing is sent.

A page's address is a secret of its viewer, and what is sent says nothing but that the page may be drawn again."""

import asyncio
import secrets
from collections.abc import Callable
from typing import Final
from weakref import WeakValueDictionary

from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket

from dapo_core.errors import StoreError
from dapo_dashboard.reads.page_reads import PageReads

PATH: Final = "live-updates"
# The browser then asks for the page to be looked at, as another server may have it.
UNKNOWN_PAGE: Final = 4404
# A page that was not redrawn after a notice gets another: its browser may have been offline.
LOOKS_UNTIL_REPEATED: Final = 15


class LivePage:
    """A part of a viewer's page that follows the store. The viewer's session owns it."""

    def __init__(self) -> None:
        self.token = secrets.token_urlsafe(24)
        self.reads = PageReads()
        self.was_down = False
        _PAGES[self.token] = self

    def drawn(self, reads: PageReads, is_down: bool) -> None:
        """The page was drawn from these reads, or while the store was down."""
        self.reads, self.was_down = reads, is_down

    def is_out_of_date(self, is_down: Callable[[], bool]) -> bool:
        """Whether it would look different now. A page of a store that is down says for how long."""
        try:
            changed = self.reads.changed()
        except StoreError:
            changed = False
        return changed or self.was_down or is_down()


_PAGES: Final[WeakValueDictionary[str, LivePage]] = WeakValueDictionary()


def route(seconds: Callable[[], float], is_down: Callable[[], bool]) -> WebSocketRoute:
    """Where a browser waits for its page to be out of date, which is looked at every so many `seconds`."""

    async def serve(socket: WebSocket) -> None:
        await socket.accept()
        left = asyncio.ensure_future(socket.receive())  # a browser says nothing until it leaves
        notified, looks = None, 0
        while not (await asyncio.wait({left}, timeout=seconds()))[0]:
            page = _PAGES.get(socket.path_params["token"])
            if page is None:
                left.cancel()
                await socket.close(UNKNOWN_PAGE)
                return
            looks += 1
            if page.reads is notified and looks < LOOKS_UNTIL_REPEATED:
                continue
            if await asyncio.to_thread(page.is_out_of_date, is_down):
                notified, looks = page.reads, 0
                await socket.send_text("out of date")

    return WebSocketRoute(f"/{PATH}/{{token}}", serve)
