"""Keeps other sites from showing the pages in a frame, where their visitors could be made to click in them."""

from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADERS: Final = [
    (b"content-security-policy", b"frame-ancestors 'self'"),
    (b"x-frame-options", b"SAMEORIGIN"),
    (b"x-content-type-options", b"nosniff"),
]


class FrameHeaders:
    """ASGI middleware that adds HEADERS to every response."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer as the wrapped application does."""

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                names = {name for name, _ in HEADERS}
                kept = [header for header in message.get("headers", []) if header[0].lower() not in names]
                message = {**message, "headers": [*kept, *HEADERS]}
            await send(message)

        await self._app(scope, receive, with_headers)
