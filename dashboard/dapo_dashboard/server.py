"""The dashboard's server: Streamlit's own, whose pages name the scripts that they need. `streamlit run` starts it."""

from importlib import import_module
from pathlib import Path
from typing import Final

import streamlit as st
from starlette.middleware import Middleware
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from dapo_dashboard import preload

_SCRIPT: Final = Path(__file__).with_name("app.py")
# What pages use, loaded before the first viewer comes and not while that one waits.
_USED: Final = (
    "pandas",
    "pyarrow.parquet",
    "psycopg",
    "dapo_dashboard.parts.checkpoints",
    "dapo_dashboard.parts.compare_tables",
    "dapo_dashboard.parts.configuration",
    "dapo_dashboard.parts.curve_grid",
    "dapo_dashboard.parts.evaluations",
    "dapo_dashboard.parts.samples",
    "dapo_dashboard.parts.status_strip",
    "dapo_dashboard.parts.timeline",
)


class Preloading:
    """Answers for the pages' own HTML; everything else is the server's."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._pages = preload.pages(Path(st.__file__).parent / "static")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        html = self._pages.get(scope["path"].strip("/")) if _is_get(scope) else None
        if html is None:
            await self._app(scope, receive, send)
        else:
            await Response(html, media_type="text/html", headers={"Cache-Control": "no-cache"})(scope, receive, send)


def _is_get(scope: Scope) -> bool:
    return bool(scope["type"] == "http" and scope["method"] == "GET")


for _name in _USED:
    import_module(_name)
app = st.App(_SCRIPT, middleware=[Middleware(Preloading)])
